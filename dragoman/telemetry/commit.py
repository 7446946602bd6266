"""The commit that this package was made from, if it is known.

A wheel or an sdist carries it in `commit.txt` (`hatch_build.py` of the repository writes it). In a
checkout git is asked. A package that came another way has none, and says so.
"""

import subprocess
from pathlib import Path

UNKNOWN = "unknown"
# A repository on a slow disk still answers; a hung one does not keep `--version` from ending.
_GIT_WITHIN = 5.0


def commit(package: Path = Path(__file__).parents[1]) -> str:
    """Return the commit, with `-dirty` if files were changed, or `unknown`."""
    try:
        return (package / "commit.txt").read_text(encoding="utf-8").strip() or UNKNOWN
    except OSError:
        return _checked_out(package.parent)


def _checked_out(root: Path) -> str:
    # Only a repository of our own: that of a project whose .venv has us tells its own commit.
    if not (root / ".git").exists() or not (root / "hatch_build.py").exists():
        return UNKNOWN
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        told = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=_GIT_WITHIN
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return told.stdout.strip() if told.returncode == 0 else UNKNOWN
