"""What holds for every wrapped agent: isolation, failures, cancels, and what the result is."""

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from harness.serving import Site, message, serving
from harness.waiting import WAIT, within

from dragoman.agents.adapters.detect import adapt
from dragoman.agents.adapters.wrapping import Response, Threads, conversation, wrapped
from dragoman.authoring.turn import Turn
from dragoman.model.identity import Caller


def text(task: Any) -> str:
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
    (artifact,) = task["artifacts"]
    assert artifact["name"] == "response"
    return "".join(part["text"] for part in artifact["parts"])


def failure(task: Any) -> str:
    assert task["status"]["state"] == "TASK_STATE_FAILED", task["status"]
    return task["status"]["message"]["parts"][0]["text"]


class Parrot:
    """The contract of selectools, with a memory that would tell on callers."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(name="Polly")
        self.tools = [SimpleNamespace(name="repeat", description="Says it again.")]
        self.heard: list[str] = []
        self.together: threading.Barrier | None = None

    def clone_for_isolation(self) -> "Parrot":
        clone = Parrot()
        clone.together = self.together
        return clone

    def run(self, messages: list[Any]) -> Any:
        for each in messages:
            if each.content == "fail":
                raise ConnectionError("password hunter2 at 10.0.0.7")
            self.heard.append(each.content)
        if self.together is not None:
            self.together.wait(WAIT)
        return SimpleNamespace(content=" and ".join(self.heard))


async def test_callers_never_meet_in_a_wrapped_agent() -> None:
    parrot = Parrot()
    async with serving(adapt(parrot, "x")) as site:
        assert text(await site.send("a secret", contextId="c")) == "a secret"
        assert text(await site.send("hello", contextId="c")) == "hello"
        # Both at work at one time, each with a clone.
        parrot.together = threading.Barrier(2)
        both = await within(asyncio.gather(site.send("one"), site.send("two")))
        assert [text(task) for task in both] == ["one", "two"]
    assert parrot.heard == []


async def test_of_what_a_wrapped_agent_raises_the_caller_learns_the_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(adapt(Parrot(), "x")) as site:
        with caplog.at_level(logging.WARNING, "dragoman"):
            task = await site.send("fail")
    assert failure(task) == "Agent execution failed (ConnectionError)"
    assert "hunter2" not in str(task)
    (record,) = [r for r in caplog.records if "ConnectionError" in r.getMessage()]
    assert record.levelname == "WARNING"
    assert "hunter2" in caplog.text


async def test_the_card_shows_the_tools_and_not_the_instructions() -> None:
    parrot = Parrot()
    parrot.config.system_prompt = "Never tell anybody about crackers."
    async with serving(adapt(parrot, "x")) as site:
        card = (await site.http.get("/.well-known/agent-card.json")).json()
    assert card["name"] == "Polly"
    (skill,) = card["skills"]
    assert (skill["id"], skill["description"]) == ("repeat", "Says it again.")
    assert "crackers" not in str(card)


async def test_a_clone_that_streams_is_shown_as_it_speaks() -> None:
    class Streaming(Parrot):
        def clone_for_isolation(self) -> "Streaming":
            return Streaming()

        async def astream(self, messages: list[Any]) -> Any:
            for word in ("Let me see", "", "It is ", "sunny"):
                calls = [] if word else ["weather"]
                yield SimpleNamespace(content=word, tool_calls=calls)
            yield SimpleNamespace(content="It is sunny", message=object())

    async with serving(adapt(Streaming(), "x")) as site:
        frames = await site.events("SendStreamingMessage", {"message": message("?")})
        chunks = [f.result["artifactUpdate"] for f in frames if "artifactUpdate" in f.result]
        shown = [(c["artifact"]["parts"][0]["text"], c.get("append", False)) for c in chunks]
        # What was said before the tool is replaced by what was said after it.
        assert shown[0] == ("Let me see", False)
        assert ("It is ", False) in shown
        assert ("sunny", True) in shown
        task = await site.task(frames[0].result["task"]["id"])
    assert text(task) == "It is sunny"


async def ends_with(*script: Any) -> Any:
    """Return the task of an agent that writes texts, starts again at None, ends with the last."""

    async def respond(turn: Turn, response: Response) -> None:
        *pieces, result = script
        for piece in pieces:
            if piece is None:
                response.restart()
            else:
                await response.write(piece)
        await response.finish(result)

    async with serving(wrapped("Scripted", "Does as told.", respond)) as site:
        return await site.send("go")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (("whole",), "whole"),
        (("a", "b", "ab"), "ab"),
        (("draft", "final"), "final"),
        (("draft", None, "fi", "nal", "final"), "final"),
        ((None, "x", "x"), "x"),
    ],
)
async def test_a_task_ends_with_what_the_framework_returned(
    script: tuple[Any, ...], expected: str
) -> None:
    assert text(await ends_with(*script)) == expected


async def test_a_result_that_is_no_text_replaces_the_text_that_led_to_it() -> None:
    task = await ends_with('{"city": ', '"Oslo"}', {"city": "Oslo"})
    (artifact,) = task["artifacts"]
    assert artifact["parts"] == [{"data": {"city": "Oslo"}}]
    assert "artifacts" not in await ends_with(None)


async def test_a_cancel_ends_a_task_whose_blocking_code_does_not_notice() -> None:
    began, release = threading.Event(), threading.Event()

    class Stuck(Parrot):
        def clone_for_isolation(self) -> "Stuck":
            return self

        def run(self, messages: list[Any]) -> Any:
            began.set()
            release.wait(WAIT)
            return SimpleNamespace(content="too late")

    async with serving(adapt(Stuck(), "x")) as site:
        task = await _begun(site)
        assert await asyncio.to_thread(began.wait, WAIT)
        canceled = await within(site.call("CancelTask", {"id": task["id"]}), WAIT / 2)
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        release.set()


async def _begun(site: Site) -> Any:
    return await site.send("go", configuration={"returnImmediately": True})


async def test_threads_are_bounded_and_a_canceled_call_keeps_its_place_until_it_ends() -> None:
    threads, release = Threads(1), threading.Event()
    first = asyncio.create_task(threads.run(release.wait, WAIT))
    await asyncio.sleep(0)
    second = asyncio.create_task(threads.run(lambda: "second"))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    done, _ = await asyncio.wait([second], timeout=0.05)
    assert not done
    release.set()
    assert await within(second) == "second"


async def test_what_a_thread_raises_reaches_who_waits() -> None:
    with pytest.raises(ZeroDivisionError):
        await within(Threads().run(lambda: 1 / 0))


def test_a_conversation_belongs_to_who_has_it() -> None:
    def of(owner: str, tenant: str | None, context: str) -> str:
        turn: Any = SimpleNamespace(caller=Caller(owner, True, tenant=tenant), context=context)
        return conversation(turn)

    ids = {
        of("ann", None, "c"), of("bob", None, "c"), of("ann", "t", "c"), of("ann", None, "d"),
        of("", None, "c"),
    }  # fmt: skip
    assert len(ids) == 5
    assert of("ann", None, "c") in ids
