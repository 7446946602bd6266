"""The systemd unit has no key that systemd does not know. No systemd runs it here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.tools import DEPLOY

UNIT = DEPLOY / "systemd" / "dragoman.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_systemd_knows_everything_in_the_unit(tmp_path: Path) -> None:
    # Only the program is not where the unit says: another one stands in for it.
    text = UNIT.read_text()
    shown = tmp_path / UNIT.name
    shown.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.M))
    command = ["systemd-analyze", "verify", "--man=no", str(shown)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    # Its exit is 0 for unknown keys too; it names them.
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert done.returncode == 0 and not ours, done.stderr


def test_the_unit_stops_after_the_drain() -> None:
    found = dict(re.findall(r"(DRAGOMAN_DRAIN|TimeoutStopSec)=(\d+)", UNIT.read_text()))
    assert int(found["TimeoutStopSec"]) > int(found["DRAGOMAN_DRAIN"])
