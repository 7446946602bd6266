"""An object with the contract of selectools: `dragoman serve examples/adapters/contract.py`."""

from types import SimpleNamespace
from typing import Any


class Parrot:
    """Repeats what it hears, and remembers it."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(name="polly")
        self.tools = [SimpleNamespace(name="repeat", description="Says it again.")]
        self.heard: list[str] = []

    def clone_for_isolation(self) -> "Parrot":
        return Parrot()

    def run(self, messages: list[Any]) -> Any:
        self.heard += [message.content for message in messages]
        return SimpleNamespace(content=" and ".join(self.heard))


agent = Parrot()
