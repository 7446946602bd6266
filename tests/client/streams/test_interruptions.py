"""A stream whose reader gives up, comes back, or is closed by somebody else."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest
from harness.serving import serving
from harness.waiting import within

from dragoman import Agent, Client, PushConfig, Stream, TaskState
from dragoman.errors import DeliveryUnknown, Overloaded
from dragoman.model.events import StatusUpdate
from dragoman.testing.scripted.agent import ScriptedAgent
from dragoman.testing.scripted.serve import serving as playing


def slow(gate: asyncio.Event) -> Agent:
    agent = Agent("Slow", "Waits in the middle.")

    @agent.skill
    async def work(text: str) -> AsyncGenerator[str]:
        yield "one "
        await gate.wait()
        yield "two "

    return agent


async def until_known(stream: Stream) -> None:
    """Wait until the first event was shown to whoever reads."""
    async with asyncio.timeout(60):
        while not stream.task_id:  # noqa: ASYNC110 - a stream tells nobody but its reader
            await asyncio.sleep(0.001)


async def rest(events: object) -> list[object]:
    return [event async for event in events]  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", [{}, {"bindings": ["rest"]}, {"version": "0.3"}])
async def test_a_wait_for_an_event_that_is_given_up_is_not_the_end(way: dict[str, str]) -> None:
    gate = asyncio.Event()
    async with serving(slow(gate)) as site, Client(site.url, **way) as agent:  # type: ignore[arg-type]
        stream = agent.stream("x")
        while True:
            try:
                await asyncio.wait_for(anext(stream), 0.2)
            except TimeoutError:
                break
        gate.set()
        events = await within(rest(stream))
        assert isinstance(events[-1], StatusUpdate)
        assert stream.answer.text == "one two " and stream.answer.state is TaskState.COMPLETED
        assert len([task async for task in agent.list()] if agent.version == "1.0" else [1]) == 1


@pytest.mark.parametrize("dedupe", [True, False])
async def test_a_message_whose_wait_was_given_up_leads_to_one_task(dedupe: bool) -> None:
    # The answer is late, so that nothing is known of the task when the first wait ends.
    agent = ScriptedAgent(
        {"dedupe": dedupe, "latency": "300ms", "rules": [{"steps": [{"state": "completed"}]}]}
    )
    async with playing(agent) as url, Client(url) as client:
        stream = client.stream("x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.05)
        try:
            assert await within(rest(stream))
        except DeliveryUnknown:
            assert not dedupe, "it could have been sent again"
    assert len(agent.tasks) <= 1


async def test_a_stream_can_be_closed_by_another_task() -> None:
    gate = asyncio.Event()
    async with serving(slow(gate)) as site, Client(site.url) as agent:
        stream = agent.stream("x")
        reading = asyncio.create_task(rest(stream))
        await until_known(stream)
        await within(stream.aclose())
        events = await within(reading)
        assert events and not reading.cancelled()
        assert await within(rest(stream)) == []
        gate.set()


async def test_who_is_canceled_while_reading_is_canceled() -> None:
    gate = asyncio.Event()
    async with serving(slow(gate)) as site, Client(site.url) as agent:
        stream = agent.stream("x")
        reading = asyncio.create_task(rest(stream))
        await until_known(stream)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(reading)
        gate.set()
        await stream.aclose()


async def test_calls_that_begin_together_agree_on_the_interface() -> None:
    import msgspec

    gate = asyncio.Event()
    gate.set()
    async with serving(slow(gate)) as site:
        async with Client(site.url) as agent:
            card = agent.card
        dead = type(card.supported_interfaces[0])("http://127.0.0.1:9/a2a", "JSONRPC", "1.0")
        good = card.supported_interfaces[0]
        mixed = msgspec.structs.replace(card, supported_interfaces=[dead, good, dead])
        async with Client(mixed) as agent:
            answers = await within(asyncio.gather(*(agent.send(str(n)) for n in range(8))))
            assert {answer.text for answer in answers} == {"one two "}
            assert agent.interface == good
            assert (await agent.send("again")).text == "one two "


async def test_a_gateways_504_is_no_reason_to_send_again() -> None:
    script = {"rules": [{"steps": [{"raw": "", "http": 504}]}]}
    agent = ScriptedAgent(script)
    async with playing(agent) as url, Client(url) as client:
        with pytest.raises(DeliveryUnknown) as lost:
            await within(client.send("x"))
        assert lost.value.code == 504
        with pytest.raises(DeliveryUnknown):
            await within(rest(client.stream("x")))
    # Once each, and looked for afterwards.
    assert len(agent.calls("SendMessage")) == len(agent.calls("SendStreamingMessage")) == 1


async def test_a_wish_that_is_no_number_is_no_wish() -> None:
    from dragoman.client.second_tries import asked_wait

    busy = Overloaded()
    for said, seconds in [("soon", 0.0), ("", 0.0), ("-1", 0.0), ("2", 2.0), ("9999", 30.0)]:
        busy.facts = {"retryAfter": said}
        assert asked_wait(busy) == seconds


async def test_a_peer_says_its_wish_in_seconds_or_by_a_date() -> None:
    from email.utils import formatdate

    from dragoman.client.http import wish

    for said in ("soon", "", "-1", "1.5", "\u0661", "1234567", "Mon, 99 Foo 2024", "9" * 400):
        assert wish({"retry-after": said}) == {}
    assert wish({"retry-after": "240"}) == {"retryAfter": "240"}
    later = wish({"retry-after": formatdate(time.time() + 240, usegmt=True)})
    assert 100 <= int(later["retryAfter"]) <= 240
    assert wish({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}) == {"retryAfter": "0"}


async def test_a_second_turns_text_is_its_own() -> None:
    script = {
        "rules": [
            {
                "steps": [
                    {"artifact": "a", "text": "OLD"},
                    {"ask": "more?"},
                    {"state": "completed", "text": "NEW"},
                ]
            }
        ]
    }
    async with playing(ScriptedAgent(script)) as url, Client(url) as agent:
        asked = await within(agent.send("x"))
        told = [text async for text in agent.stream_text("yes", task_id=asked.task_id)]
        assert told == ["NEW"]


async def test_a_push_configuration_made_twice_is_one() -> None:
    gate = asyncio.Event()
    async with serving(slow(gate)) as site, Client(site.url) as agent:
        begun = await agent.send("x", wait=False)
        made = await agent.create_push(begun.task_id, PushConfig("https://hooks.example.com/x"))
        assert made.id
        await agent.create_push(begun.task_id, made)
        assert [config.id for config in await agent.list_push(begun.task_id)] == [made.id]
        gate.set()
        assert (await within(agent.wait(begun.task_id))).text == "one two "
