"""A chat program from the registry, unmodified, talks to an agent of ours: served by itself, and
behind a gateway that asks for a token."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.testing.processes import ServerProcess, clean_environment
from proof.environments import ROOT, python_with
from tests.peers.libraries import CHAT_PROGRAM

TOKEN = "a-token-for-the-chat-program-0123456789"
WITHIN = 300.0
DEMO = str(ROOT / "dragoman" / "server" / "demo_agent.py")


class Program:
    """The program, with models that are at our address."""

    def __init__(self, folder: Path, address: str, *models: str) -> None:
        self._python = str(python_with(*CHAT_PROGRAM))
        self._environment = os.environ | {"LLM_USER_PATH": str(folder), "NO_PROXY": "127.0.0.1"}
        facts = '  model_name: "{0}"\n  api_base: "{1}/v1"\n  api_key_name: ours\n'
        rows = [f'- model_id: "{one}"\n{facts.format(one, address)}' for one in models]
        (folder / "extra-openai-models.yaml").write_text("".join(rows))

    def says(self, *words: str) -> str:
        """Return what the program prints."""
        done = subprocess.run(
            [self._python, "-m", "llm", *words, "--key", TOKEN],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN,
        )
        return done.stdout + done.stderr


@pytest.mark.peer
@pytest.mark.parametrize("words", [["serve", DEMO], ["up"]], ids=["served", "gateway"])
def test_a_chat_program_is_answered_and_asked(words: list[str], tmp_path: Path) -> None:
    options = ["--openai", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "tasks.db")]
    with ServerProcess(
        [sys.executable, "-m", "dragoman", *words, *options],
        log=tmp_path / "log",
        cwd=ROOT,
        environment=clean_environment() | {"DRAGOMAN_AUTH_TOKEN": TOKEN},
    ) as server:
        program = Program(tmp_path, server.ready(), "dragoman-demo", "dragoman-demo/order")
        if words != ["up"]:
            assert program.says("-m", "dragoman-demo", "hello").strip() == "hello"
            return
        asked = program.says("-m", "dragoman-demo/order", "a cup of tea")
        assert asked.strip() == "Where shall it go?"
        done = program.says("-c", "the garden")
        assert done.strip() == "One a cup of tea is on its way to the garden."
