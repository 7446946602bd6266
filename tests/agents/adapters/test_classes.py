"""Functions and classes as agents: skills by signature, a copy of the object for each request."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from harness.serving import Site, serving

from dragoman import Turn
from dragoman.agents.adapters.detect import adapt


class Notebook:
    """Keeps notes."""

    made = 0

    def __init__(self) -> None:
        Notebook.made += 1
        self.notes: list[str] = []

    def note(self, text: str) -> str:
        """Writes a note."""
        self.notes.append(text)
        return "; ".join(self.notes)

    async def add(self, left: int, right: int = 1) -> int:
        """Adds."""
        return left + right

    def count(self, to: int) -> Iterator[str]:
        """Counts."""
        yield from map(str, range(to))

    async def spell(self, word: str, turn: Turn) -> AsyncIterator[str]:
        """Spells."""
        await turn.say("Spelling")
        for letter in word:
            yield letter

    @staticmethod
    def version(text: str) -> str:
        """Tells the version."""
        return f"1 {text}"

    def undocumented(self, text: str) -> str:
        return text

    def _hidden(self, text: str) -> str:
        """Is nobody's business."""
        return text


async def parts(site: Site, skill: str, text: str | None = None, **more: Any) -> Any:
    task = await site.send(text, metadata={"skillId": skill}, **more)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
    return task["artifacts"][0]["parts"]


async def test_each_public_method_with_a_docstring_is_a_skill() -> None:
    Notebook.made = 0
    agent = adapt(Notebook, "Notebook")
    assert list(agent.skills) == ["note", "add", "count", "spell", "version"]
    assert agent.description == "Keeps notes."
    async with serving(agent) as site:
        assert await parts(site, "note", "one") == [{"text": "one"}]
        # A copy each: nothing of the first request is left.
        assert await parts(site, "note", "two") == [{"text": "two"}]
        data = [{"data": {"left": 2, "right": 3}}]
        assert await parts(site, "add", parts=data) == [{"data": 5.0}]
        assert await parts(site, "version", "x") == [{"text": "1 x"}]
        for skill, given, told in (("count", "3", "012"), ("spell", "abc", "abc")):
            chunks = await parts(site, skill, given)
            assert "".join(chunk["text"] for chunk in chunks) == told
    assert Notebook.made == 1


async def test_an_object_may_say_how_it_is_shared() -> None:
    class Shared(Notebook):
        def clone_for_isolation(self) -> "Shared":
            return self

    agent = adapt(Shared(), "Notebook")
    assert "clone_for_isolation" not in agent.skills
    async with serving(agent) as site:
        await parts(site, "note", "one")
        assert await parts(site, "note", "two") == [{"text": "one; two"}]


async def test_a_method_that_fails_is_an_incident_without_its_words() -> None:
    class Failing:
        def work(self, text: str) -> str:
            """Works."""
            raise ValueError("hunter2")

    async with serving(adapt(Failing(), "failing")) as site:
        task = await site.send("x")
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "Incident" in str(task) and "hunter2" not in str(task)


@pytest.mark.parametrize("kind", ["plain", "async", "generator", "async generator"])
async def test_any_function_is_an_agent(kind: str) -> None:
    def plain(text: str) -> str:
        return text.upper()

    async def awaited(text: str) -> str:
        return text.upper()

    def generator(text: str) -> Iterator[str]:
        yield text.upper()

    async def async_generator(text: str) -> AsyncIterator[str]:
        yield text.upper()

    kinds: dict[str, Any] = {"plain": plain, "async": awaited, "generator": generator}
    async with serving(adapt(kinds.get(kind, async_generator), "shout")) as site:
        assert (await parts(site, "shout", "hey"))[0] == {"text": "HEY"}
