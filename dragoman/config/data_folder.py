"""The folder for this user's data."""

import os
import sys
from pathlib import Path

from dragoman.errors import ConfigError


def data_folder() -> Path:
    """Return the folder for this user's data."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dragoman"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "dragoman"
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "dragoman"


def make_data_folder() -> None:
    """Make the folder for this user's data, for the user alone; raises `ConfigError`."""
    folder = data_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder}: the folder for your data cannot be made ({error.strerror}); name a file by "
            "--store"
        ) from None
