"""A class as an agent: `dragoman serve examples/adapters/greeter.py:Greeter`."""

from collections.abc import Iterator


class Greeter:
    """Greets people."""

    def __init__(self) -> None:
        self.greeted: list[str] = []

    def greet(self, name: str) -> str:
        """Greets a person. Each request has a copy of the object, so it greets one at a time."""
        self.greeted.append(name)
        return f"Hello {', '.join(self.greeted)}"

    async def spell(self, name: str) -> str:
        """Spells a name."""
        return "-".join(name.upper())

    def count(self, to: int) -> Iterator[str]:
        """Counts, word by word."""
        yield from (f"{number} " for number in range(1, to + 1))
