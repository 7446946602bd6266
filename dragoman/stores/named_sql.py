"""SQL in files: statements by their names, migrations by their numbers."""

import functools
import re
from importlib import import_module
from pathlib import Path


@functools.cache
def statements(package: str, file: str) -> dict[str, str]:
    """Return the statements of a file, each after a line `-- name: NAME`."""
    text = (_folder(package) / file).read_text(encoding="utf-8")
    blocks = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(blocks[1::2], (block.strip() for block in blocks[2::2]), strict=True))


@functools.cache
def migrations(package: str) -> tuple[tuple[int, str], ...]:
    """Return the scripts of a package's folder `migrations` in order, each with its number."""
    scripts = sorted((_folder(package) / "migrations").glob("*.sql"))
    return tuple(
        (int(script.name.split("_")[0]), script.read_text(encoding="utf-8")) for script in scripts
    )


def _folder(package: str) -> Path:
    # Not importlib.resources: it loads zipfile and more, and our files are never in an archive.
    return Path(import_module(package).__path__[0])
