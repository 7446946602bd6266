"""Environments with the real packages of the frameworks, beside that of the tests: one with four of
them, one with CrewAI.

What Dragoman itself needs they borrow from the environment of the tests, after their own packages.
CrewAI with all that it asks for has 822 MB: its environment has what a crew reads, a quarter of it.
"""

import hashlib
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from proof.environments import EnvironmentFailed, made, make_python, run

PINS = (
    "langgraph==1.2.20",
    "pydantic-ai-slim==2.66.0",
    "openai-agents==0.24.0",
    "google-adk==2.13.0",
)
READ = (
    "langgraph.checkpoint.memory",
    "langgraph.graph",
    "langchain_core.language_models.fake_chat_models",
    "pydantic_ai.models.function",
    "pydantic_ai.models.test",
    "agents",
    "google.adk.runners",
    "google.adk.agents",
    "google.adk.sessions",
)


CREWAI_PINS = Path(__file__).with_name("crewai.txt")


def python_with_frameworks() -> Path:
    """Return the interpreter that has four of them; raises `EnvironmentFailed`."""
    versions = "-".join(pin.partition("==")[2] for pin in PINS)
    return _python(f"frameworks-{versions}", PINS, READ)


def python_with_crewai() -> Path:
    """Return the interpreter that has CrewAI; raises `EnvironmentFailed`."""
    pins = hashlib.sha256(CREWAI_PINS.read_bytes()).hexdigest()[:12]
    return _python(f"crewai-{pins}", ("--no-deps", "-r", str(CREWAI_PINS)), ("crewai",))


def _python(name: str, requirements: Sequence[str], read: Sequence[str]) -> Path:
    def make(folder: Path) -> None:
        make_python(folder, requirements)
        (packages,) = (folder / "lib").glob("python*/site-packages")
        # Such a file adds to the end of the path.
        (packages / "zz_borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        # Compiled now, they are read in a third of the time when a test waits for it.
        imports = f"import sys; sys.dont_write_bytecode = False; import {', '.join(read)}"
        run([str(folder / "bin" / "python"), "-c", imports])

    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return made(f"{name}-{version}", make) / "bin" / "python"


if __name__ == "__main__":
    for prepare in (python_with_frameworks, python_with_crewai):
        # Told by the test that needs it.
        with suppress(EnvironmentFailed):
            prepare()
