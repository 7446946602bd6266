"""The environments of the peers are made once, whoever asks and however often."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from proof import environments
from proof.environments import EnvironmentFailed, made, run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_PEERS_DIR", str(tmp_path))


def test_many_callers_at_once_make_an_environment_once() -> None:
    makers: list[Path] = []

    def make(folder: Path) -> None:
        makers.append(folder)
        folder.mkdir()

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: made("peer-1.0", make), range(8)))
    assert len(makers) == 1
    assert set(folders) == set(makers)


def test_an_environment_left_half_made_is_made_again() -> None:
    def give_up(folder: Path) -> None:
        folder.mkdir()
        (folder / "remains").touch()
        raise EnvironmentFailed("no line")

    with pytest.raises(EnvironmentFailed):
        made("peer-1.0", give_up)
    folder = made("peer-1.0", Path.mkdir)
    assert not (folder / "remains").exists()


def test_an_installer_that_fails_is_quoted() -> None:
    with pytest.raises(EnvironmentFailed, match="ended with 3:\nno such version"):
        run([sys.executable, "-c", "print('no such version'); raise SystemExit(3)"])


def test_an_installer_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "INSTALL_WITHIN", 0.2)
    with pytest.raises(EnvironmentFailed, match="did not end"):
        run([sys.executable, "-c", "import threading; threading.Event().wait()"])
