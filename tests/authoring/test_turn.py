"""What an author's code sees of its task, in a coroutine and in a thread alike."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from harness.serving import Site, message, old_message, serving
from harness.waiting import within

from dragoman import Agent, Turn


def made(*functions: Callable[..., Any]) -> Agent:
    agent = Agent("Turns", "Takes turns.")
    for function in functions:
        agent.skill(function)
    return agent


def state(task: Any) -> str:
    return task["status"]["state"].removeprefix("TASK_STATE_").lower()


def last_word(task: Any) -> str:
    return task["status"]["message"]["parts"][0]["text"]


async def say(text: str, turn: Turn) -> str:
    await turn.say(f"on {text}", metadata={"step": 1})
    await turn.artifact({"n": 1}, name="numbers", description="A number.", metadata={"m": 2})
    return "done"


def say_in_thread(text: str, turn: Any) -> str:
    turn.say(f"on {text}", metadata={"step": 1})
    turn.artifact({"n": 1}, name="numbers", description="A number.", metadata={"m": 2})
    return "done"


@pytest.mark.parametrize("function", [say, say_in_thread])
async def test_what_is_said_and_produced_is_seen_in_order(function: Callable[..., Any]) -> None:
    async with serving(made(function)) as site:
        events = await site.events("SendStreamingMessage", {"message": message("x")})
        updates = [next(iter(event.result.values())) for event in events[1:]]
        said = [u for u in updates if "status" in u and "message" in u["status"]]
        assert said[0]["status"]["message"]["parts"] == [{"text": "on x"}]
        assert said[0]["status"]["message"]["metadata"] == {"step": 1}
        task = await site.task(events[0].result["task"]["id"])
        first, second = task["artifacts"]
        assert first["name"] == "numbers" and first["description"] == "A number."
        assert first["metadata"] == {"m": 2} and first["parts"] == [{"data": {"n": 1}}]
        assert second["parts"] == [{"text": "done"}]


async def ask(text: str, turn: Turn) -> str:
    answer = await turn.ask(f"Where to, {text}?")
    return f"{text} to {answer.text}; {len(turn.history)} said"


def ask_in_thread(text: str, turn: Any) -> str:
    answer = turn.ask(f"Where to, {text}?")
    return f"{text} to {answer.text}; {len(turn.history)} said"


@pytest.mark.requirement("T-4", "T-19")
@pytest.mark.parametrize("function", [ask, ask_in_thread])
async def test_a_question_waits_for_its_answer(function: Callable[..., Any]) -> None:
    async with serving(made(function)) as site:
        task = await site.send("tea")
        assert state(task) == "input_required" and last_word(task) == "Where to, tea?"
        done = await site.send("Oslo", taskId=task["id"])
        assert done["id"] == task["id"] and state(done) == "completed"
        assert done["artifacts"][0]["parts"] == [{"text": "tea to Oslo; 3 said"}]


async def authorize(text: str, turn: Turn) -> str:
    return (await turn.authorize("A token, please.")).text


async def test_credentials_are_asked_for_in_a_state_of_their_own() -> None:
    async with serving(made(authorize)) as site:
        old = await site.call("message/send", {"message": old_message("x")})
        assert old["status"]["state"] == "auth-required"
        done = await site.send("given", taskId=old["id"])
        assert state(done) == "completed"


async def test_the_turn_knows_whose_it_is() -> None:
    seen: dict[str, Any] = {}

    async def look(text: str, turn: Turn) -> None:
        seen.update(
            task=turn.task_id,
            context=turn.context,
            message=turn.message.message_id,
            metadata=turn.metadata,
            caller=turn.caller.owner,
            attempt=turn.attempt,
            cancelled=turn.cancelled,
            history=[said.text for said in turn.history],
        )

    async with serving(made(look)) as site:
        said = message("x", contextId="c")
        params = {"message": said, "metadata": {"trace": "t"}}
        task = (await site.call("SendMessage", params))["task"]
    assert seen["task"] == task["id"] and seen["context"] == task["contextId"] == "c"
    assert seen["message"] == said["messageId"] and seen["metadata"] == {"trace": "t"}
    assert seen["attempt"] == 1 and seen["cancelled"] is False and seen["history"] == ["x"]
    assert isinstance(seen["caller"], str)


async def test_a_task_may_be_completed_with_a_last_word() -> None:
    async def bye(text: str, turn: Turn) -> str:
        turn.complete("bye")

    async with serving(made(bye)) as site:
        task = await site.send("x")
        assert state(task) == "completed" and last_word(task) == "bye"


async def test_an_artifact_can_be_written_bit_by_bit() -> None:
    async def write(text: str, turn: Turn) -> None:
        async with turn.artifact(name="report") as out:
            for line in ("one ", "two ", "three"):
                await out.write(line)

    async with serving(made(write)) as site:
        (artifact,) = (await site.send("x"))["artifacts"]
        assert artifact["name"] == "report"
        assert "".join(part["text"] for part in artifact["parts"]) == "one two three"


# Cancelling


@pytest.fixture
async def begun() -> asyncio.Event:
    return asyncio.Event()


async def canceled(site: Site, task: str, seconds: float = 3.0) -> Any:
    """Cancel well within the grace that code which does not stop would use up."""
    return await within(site.call("CancelTask", {"id": task}), seconds)


@pytest.mark.requirement("T-34")
async def test_waiting_code_gets_to_know_of_a_cancel_and_may_clean_up(
    begun: asyncio.Event,
) -> None:
    cleaned: list[bool] = []

    async def wait(text: str, turn: Turn) -> AsyncIterator[str]:
        try:
            yield "begun"
            begun.set()
            await asyncio.Event().wait()
        finally:
            cleaned.append(turn.cancelled)

    async with serving(made(wait)) as site:
        task = await site.send("x", configuration={"returnImmediately": True})
        await within(begun.wait())
        assert state(await canceled(site, task["id"])) == "canceled"
        assert cleaned == [True]
        again = await site.refusal("CancelTask", {"id": task["id"]})
        assert again["code"] == -32002


async def test_code_in_a_thread_sees_a_flag() -> None:
    begun = threading.Event()

    def spin(text: str, turn: Any) -> str:
        begun.set()
        tick = threading.Event()
        while not turn.cancelled:
            tick.wait(0.01)
        return "stopped"

    async with serving(made(spin)) as site:
        task = await site.send("x", configuration={"returnImmediately": True})
        assert await asyncio.to_thread(begun.wait, 60)
        assert state(await canceled(site, task["id"])) == "canceled"


async def test_code_in_a_thread_that_asks_is_let_go_by_a_cancel() -> None:
    ended = threading.Semaphore(0)

    def wait(text: str, turn: Any) -> str:
        try:
            return turn.ask("Well?").text
        finally:
            ended.release()

    # One thread: if a cancelled question kept it, the next task would never begin.
    async with serving(made(wait), threads=1) as site:
        for _ in range(3):
            task = await site.send("x")
            assert state(task) == "input_required"
            assert state(await canceled(site, task["id"])) == "canceled"
            assert await asyncio.to_thread(ended.acquire, True, 60)
        task = await site.send("x")
        assert state(await site.send("y", taskId=task["id"])) == "completed"


async def test_code_that_does_not_stop_is_ended_after_its_grace() -> None:
    go = threading.Event()

    def deaf(text: str) -> str:
        go.wait(60)
        return "too late"

    async with serving(made(deaf), cancel_grace=0.1) as site:
        task = await site.send("x", configuration={"returnImmediately": True})
        try:
            assert state(await canceled(site, task["id"])) == "canceled"
        finally:
            go.set()
        found = await site.task(task["id"])
        assert state(found) == "canceled" and "artifacts" not in found
