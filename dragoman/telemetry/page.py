"""The page of metrics, for this process or for all workers on one port.

Workers share a port, so a scrape reaches any one of them. Each leaves its counts in a folder every
second, and whoever is asked adds those of its siblings to its own: the page is of all workers,
behind by a second at most for the others.
"""

import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

import msgspec

# Imported for its effect too: the page has every figure from the start.
from dragoman.telemetry import figures as figures
from dragoman.telemetry.metrics import CONTENT_TYPE as CONTENT_TYPE
from dragoman.telemetry.metrics import Family, collect, merged, text

logger = logging.getLogger("dragoman")

# Where siblings leave their counts; set by the process that starts them.
FOLDER_VARIABLE = "DRAGOMAN_WORKER_METRICS"
SHARE_EVERY = 1.0
# A sibling that wrote nothing for so long is gone.
_STALE = 30.0
_decode = msgspec.json.Decoder(list[Family]).decode


def render() -> bytes:
    """Return the page in Prometheus' text format."""
    return text(everything())


def everything() -> list[Family]:
    """Return what this process and its siblings counted."""
    folder = os.environ.get(FOLDER_VARIABLE, "")
    own = collect()
    return merged([own, *_siblings(Path(folder))]) if folder else own


def _siblings(folder: Path) -> list[list[Family]]:
    found: list[list[Family]] = []
    for path in sorted(folder.glob("*.json")):
        if path.stem == str(os.getpid()):
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if time.time() - path.stat().st_mtime < _STALE:
                found.append(_decode(path.read_bytes()))
    return found


@contextlib.contextmanager
def gathering() -> Generator[None]:
    """Have the workers that are started within leave their counts for each other."""
    with tempfile.TemporaryDirectory(prefix="dragoman-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


def share() -> None:
    """Leave our counts for siblings from here on, if there are any."""
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if folder:
        # A daemon: it ends with the process, and what it wrote goes with the folder.
        threading.Thread(
            target=_share, args=(Path(folder),), name="dragoman-metrics", daemon=True
        ).start()


def _share(folder: Path) -> None:
    path = folder / f"{os.getpid()}.json"
    while folder.is_dir():
        try:
            leave(path)
        except Exception:
            logger.exception("the counts of this worker are not shared this time")
        time.sleep(SHARE_EVERY)


def leave(path: Path) -> None:
    """Write our counts down, whole or not at all."""
    draft = path.with_suffix(".tmp")
    draft.write_bytes(msgspec.json.encode(collect()))
    draft.replace(path)
