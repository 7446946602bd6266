"""A real Chromium for tests: `$CHROME`, the system's, else the one of an npm package.

The npm one is fetched once into `.peers/`, with the libraries and fonts that it needs. A machine
that has none and cannot fetch one fails: a page that no browser has shown is not tested.
"""

import os
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from playwright.async_api import Browser, async_playwright

from proof import environments

_HERE = Path(__file__).parent
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Chromium(NamedTuple):
    """A browser's program, and what has to be in its environment."""

    program: str
    environment: dict[str, str]


@cache
def _packages() -> tuple[Path, Path]:
    """Return Node, and the folder of the npm packages that tests of the console use."""
    return environments.node_with(_HERE / "package.json")


def axe() -> str:
    """Return the script that looks for what keeps people from using a page."""
    return (_packages()[1] / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


@cache
def chromium() -> Chromium:
    """Return a browser; raises if there is none and none can be fetched."""
    found = os.environ.get("CHROME") or next(filter(None, map(shutil.which, _NAMES)), "")
    if found:
        return Chromium(found, {})
    node, packages = _packages()
    modules = packages / "node_modules"
    folder = packages / "chromium"
    with environments.locked(packages / "chromium.lock"):
        if not (folder / "finished").exists():
            shutil.rmtree(folder, ignore_errors=True)
            packed = modules / "@sparticuz/chromium/bin"
            command = [str(node), str(_HERE / "unpack.mjs"), str(packed), str(folder)]
            subprocess.run(command, check=True, timeout=environments.INSTALL_WITHIN)
            _write_font_settings(folder, modules / "dejavu-fonts-ttf/ttf")
            (folder / "finished").touch()
    libraries = f"{folder / 'al2023' / 'lib'}:{folder / 'lib'}:{folder}"
    return Chromium(
        str(folder / "chromium"), {"LD_LIBRARY_PATH": libraries, "FONTCONFIG_PATH": str(folder)}
    )


def _write_font_settings(folder: Path, fonts: Path) -> None:
    """Name the fonts: without any, text has no width and tests of it would still pass."""
    plain = "".join(
        f"<alias binding='strong'><family>{name}</family>"
        f"<prefer><family>{font}</family></prefer></alias>"
        for name, font in (
            *((name, "DejaVu Sans") for name in ("system-ui", "ui-sans-serif", "sans-serif")),
            *((name, "DejaVu Sans Mono") for name in ("ui-monospace", "monospace")),
        )
    )
    places = f"<dir>{fonts}</dir><cachedir>{folder / 'fonts'}</cachedir>"
    text = f"<?xml version='1.0'?>\n<fontconfig>{places}{plain}</fontconfig>\n"
    (folder / "fonts.conf").write_text(text, encoding="utf-8")


@asynccontextmanager
async def launched() -> AsyncGenerator[Browser]:
    """Run a browser for as long as the block lasts."""
    found = chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found.program, env={**os.environ, **found.environment}
        )
        try:
            yield browser
        finally:
            await browser.close()
