"""SQL in files: statements by their names, migrations by their numbers."""

import functools
import re
from importlib import resources


@functools.cache
def named(package: str, file: str) -> dict[str, str]:
    """Return the statements of a file, each after a line `-- name: NAME`."""
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    blocks = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(blocks[1::2], (block.strip() for block in blocks[2::2]), strict=True))


@functools.cache
def migrations(package: str) -> tuple[tuple[int, str], ...]:
    """Return the scripts of a package's folder `migrations` in order, each with its number."""
    folder = resources.files(package).joinpath("migrations")
    scripts = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(
        (int(name.split("_")[0]), folder.joinpath(name).read_text(encoding="utf-8"))
        for name in scripts
    )
