"""One environment with the real packages of four frameworks, beside that of the tests.

What Dragoman itself needs it borrows from the environment of the tests, after its own packages.
CrewAI has 822 MB and takes minutes to install: it is tried by hand, see docs/adapters.md.
"""

import sys
import sysconfig
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))

from environments import made, make_python, run

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


def python_with_frameworks() -> Path:
    """Return the interpreter that has them; raises `EnvironmentFailed`."""
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    folder = made(f"frameworks-{'-'.join(pin.partition('==')[2] for pin in PINS)}-{version}", _make)
    return folder / "bin" / "python"


def _make(folder: Path) -> None:
    make_python(folder, PINS)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # Such a file adds to the end of the path.
    (packages / "zz_borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # Compiled now, they are read in a third of the time when a test waits for it.
    read = f"import sys; sys.dont_write_bytecode = False; import {', '.join(READ)}"
    run([str(folder / "bin" / "python"), "-c", read])


if __name__ == "__main__":
    python_with_frameworks()
