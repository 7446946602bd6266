"""Writes the commit of a build into it, as `dragoman/commit.txt`: `dragoman --version` tells it.

The commit is DRAGOMAN_COMMIT where the builder says so (an image has no git), that of an sdist
which is built further, or the one git tells. Where none is known, the build has no such file.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "dragoman/commit.txt"


class CommitHook(BuildHookInterface):
    """Adds the file to wheels and sdists; an editable install asks git each time."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        self._folder = Path(tempfile.mkdtemp(prefix="dragoman-build-"))
        if version == "editable" or (root / NAME).exists():
            return
        if commit := os.environ.get("DRAGOMAN_COMMIT") or commit_of(root):
            file = self._folder / "commit.txt"
            file.write_text(f"{commit}\n", encoding="utf-8")
            file.chmod(0o644)
            build_data["force_include"][str(file)] = NAME

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._folder)


def commit_of(root: Path) -> str:
    """Return the commit that is checked out, marked if files were changed; empty if unknown."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        told = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return told.stdout.strip() if told.returncode == 0 else ""
