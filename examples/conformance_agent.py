"""An agent that public A2A suites can be pointed at: it does what a message id's prefix says, or,
behind a gateway that gives messages ids of its own, what their text begins with.

Serve it with `dragoman serve examples/conformance_agent.py`; suites that repeat message ids also
want `--idempotency=false`, those with webhooks on this machine `--allow-private`. Switches of its
own, from the environment:

CONFORMANCE_VERSION              1.0, 0.3 or 0.2: what is done with ids no suite has reserved
CONFORMANCE_STREAMING            off: streams are refused
CONFORMANCE_EXTENDED             on: there is an extended card (public with --extended-card-public)
CONFORMANCE_PUSH                 off: push notifications are refused
CONFORMANCE_REQUIRED_EXTENSION   a URI that every caller must ask for
CONFORMANCE_STREAM_SECONDS       how long the suite listens to a stream (2)
"""

import asyncio
import os
from collections.abc import Awaitable, Callable

from dragoman import Agent, AgentExtension, AgentSkill, Message, Part, Turn

Behaviour = Callable[[Turn], Awaitable[Message | None]]


def switch(name: str, default: str) -> bool:
    """Return whether a switch is on."""
    return os.environ.get(name, default).lower() not in ("", "0", "off", "false", "no")


VERSION = os.environ.get("CONFORMANCE_VERSION", "1.0")
STREAM_SECONDS = float(os.environ.get("CONFORMANCE_STREAM_SECONDS", "2"))
REQUIRED = os.environ.get("CONFORMANCE_REQUIRED_EXTENSION", "")
if "CONFORMANCE_PUSH" in os.environ:
    # A setting of the server's, which reads its own after this file.
    os.environ["DRAGOMAN_PUSH"] = "on" if switch("CONFORMANCE_PUSH", "on") else "off"

agent = Agent(
    "Conformance agent",
    "Does what the prefix of a message id asks for.",
    # The suite of 1.0 sends a type of its own and wants it refused.
    input_modes=["text/*", "image/*", "application/json", "application/octet-stream"],
    streaming=switch("CONFORMANCE_STREAMING", "on"),
    extensions=[AgentExtension(uri=REQUIRED, required=True)] if REQUIRED else [],
    extended_skills=[
        AgentSkill(id="secret", name="Secret", description="For known callers.", tags=["tck"])
    ]
    if switch("CONFORMANCE_EXTENDED", "off")
    else None,
)
FILE = Part(raw=b"Generated file content", filename="output.txt", media_type="text/plain")
FILE_URL = Part(
    url="https://example.com/output.txt", filename="output.txt", media_type="text/plain"
)


async def complete(turn: Turn) -> None:
    """Complete, with a last word."""
    turn.complete("Hello from TCK")


async def complete_at_once(turn: Turn) -> None:
    """Complete."""
    turn.complete()


async def need_input(turn: Turn) -> Message | None:
    """Ask, then do what the answer's id says."""
    return await by_id(await turn.ask("More input is needed"), turn)


async def need_authorization(turn: Turn) -> None:
    """Ask for an authorization, then complete."""
    await turn.authorize("An authorization is needed")


async def complete_later(turn: Turn) -> None:
    """Work for a while, then complete."""
    await turn.say("Working")
    await asyncio.sleep(STREAM_SECONDS)


async def reject(turn: Turn) -> None:
    """Refuse."""
    turn.reject("This task is not for me")


async def reply(turn: Turn) -> Message:
    """Answer without a task."""
    return turn.reply("Direct message response")


def artifact(*content: Part | str | dict[str, object]) -> Behaviour:
    """Return the behaviour that produces one artifact per content."""

    async def produce(turn: Turn) -> None:
        for item in content:
            await turn.artifact(item, name="result")

    return produce


async def two_chunks(turn: Turn) -> None:
    """Produce one artifact in two chunks."""
    async with turn.artifact(name="result") as out:
        await out.write("chunk-1 ")
        await out.write("chunk-2")


async def slow(turn: Turn) -> None:
    """Work long enough to be left and found again, then do as with any other message."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 2 * STREAM_SECONDS + 0.5
    while loop.time() < end:
        await turn.say("Still working")
        await asyncio.sleep(0.4)
    await turn.artifact("Generated text content", name="result")
    await otherwise(turn)


async def otherwise(turn: Turn) -> None:
    """What the suite of each version wants of messages it has not reserved."""
    if VERSION == "0.3":
        await turn.say("Working")
        await asyncio.sleep(1)
        while True:
            await turn.ask("More input is needed")
    elif VERSION == "0.2":
        await turn.say("Working")
        await asyncio.sleep(4)


BEHAVIOURS: dict[str, Behaviour] = {
    "tck-complete-task": complete,
    "tck-delayed-complete": complete_later,
    "tck-input-required": need_input,
    "tck-auth-required": need_authorization,
    "tck-artifact-text": artifact("Generated text content"),
    "tck-artifact-file-url": artifact(FILE_URL),
    "tck-artifact-file": artifact(FILE),
    "tck-artifact-data": artifact({"key": "value", "count": 42}),
    "tck-message-response": reply,
    "tck-reject-task": reject,
    "tck-stream-001": artifact("Generated text content"),
    "tck-stream-002": complete_at_once,
    "tck-stream-003": artifact("Generated text content"),
    "tck-stream-ordering-001": artifact("Generated text content"),
    "tck-stream-artifact-text": artifact("Generated text content"),
    "tck-stream-artifact-file": artifact(FILE),
    "tck-stream-artifact-chunked": two_chunks,
    "test-resubscribe-message-id": slow,
}
LONGEST_FIRST = sorted(BEHAVIOURS, key=len, reverse=True)


async def by_id(message: Message, turn: Turn) -> Message | None:
    """Do what a message id asks for, or else the text."""
    for said in (message.message_id, message.text):
        for prefix in LONGEST_FIRST:
            if said.startswith(prefix):
                return await BEHAVIOURS[prefix](turn)
    await otherwise(turn)
    return None


@agent.skill(tags=["tck"], default=True)
async def conform(message: Message, turn: Turn) -> Message | None:
    """Does what the message id asks for."""
    return await by_id(message, turn)
