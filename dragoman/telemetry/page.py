"""The page of metrics, for this process or for all workers on one port.

Workers share a port, so a scrape reaches any one of them. Each worker writes its counts to a folder
every second, and the worker that is scraped adds those of its siblings: the page covers all
workers, at most one second late.
"""

import contextlib
import logging
import os
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

# The folder of the counts; set by the process that starts the workers.
FOLDER_VARIABLE = "DRAGOMAN_WORKER_METRICS"
SHARE_EVERY = 1.0
# Seconds without a write after which a sibling is considered dead.
_STALE = 30.0
_decode = msgspec.json.Decoder(list[Family]).decode


def render() -> bytes:
    """Return the page in Prometheus' text format."""
    return text(everything())


def everything() -> list[Family]:
    """Return the counts of this process and its siblings."""
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
    """Let workers that are started within share their counts."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="dragoman-metrics-") as folder:
        os.environ[FOLDER_VARIABLE] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER_VARIABLE]


def share() -> None:
    """Write the counts of this process for its siblings from now on, if it has any."""
    folder = os.environ.get(FOLDER_VARIABLE, "")
    if folder:
        # A daemon: it ends with the process, and its file is removed with the folder.
        threading.Thread(
            target=_share, args=(Path(folder),), name="dragoman-metrics", daemon=True
        ).start()


def _share(folder: Path) -> None:
    path = folder / f"{os.getpid()}.json"
    while folder.is_dir():
        try:
            write_counts(path)
        except Exception:
            # Whatever it was: the thread has no successor.
            logger.exception("the counts of this worker could not be shared; trying again")
        time.sleep(SHARE_EVERY)


def write_counts(path: Path) -> None:
    """Write the counts to a file, atomically."""
    draft = path.with_suffix(".tmp")
    draft.write_bytes(msgspec.json.encode(collect()))
    draft.replace(path)
