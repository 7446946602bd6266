"""Processes whose clock is wrong: Python's `time.time` is shifted in them as they start."""

import os
from pathlib import Path

_SHIFT = "PROOF_CLOCK_SHIFT"
_SITE = f'''"""Shifts the clock of a process under proof."""
import os
import time

_shift = float(os.environ.get("{_SHIFT}", "0"))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _shift
time.time_ns = lambda: _time_ns() + int(_shift * 1e9)
'''


def shifted(folder: Path, seconds: float) -> dict[str, str]:
    """Return the environment of a process whose clock is so many seconds ahead."""
    place = folder / "clock"
    place.mkdir(parents=True, exist_ok=True)
    (place / "sitecustomize.py").write_text(_SITE)
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(place), *([before] if before else [])])
    return {"PYTHONPATH": path, _SHIFT: f"{seconds:g}"}
