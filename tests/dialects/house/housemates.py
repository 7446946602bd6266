"""An agent with one skill for every state a task can be in, and what callers of houses send it."""

import asyncio
from typing import Any

from harness.waiting import within

from dragoman import Agent, Message, Part, Turn
from dragoman.errors import TaskFailed, TaskRejected

PNG = b"\x89PNG"
UNKNOWN = "00000000-0000-7000-8000-000000000000"
SSE = {"accept": "text/event-stream"}

agent = Agent("Housemate", "Plays every state.")
_FORM = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_VALUE = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}
# Opened by tests that want a task to be under way for as long as they look.
gates: dict[str, asyncio.Event] = {}


@agent.skill(default=True)
async def echo(text: str) -> str:
    return f"Echo: {text}"


@agent.skill
async def chat(text: str, turn: Turn) -> None:
    await turn.complete(f"You said: {text}")


@agent.skill
async def talkative(text: str, turn: Turn) -> str:
    await turn.say("Looking ...")
    return f"Found: {text}"


@agent.skill
async def ask(text: str, turn: Turn) -> str:
    answer = await turn.ask("Where?")
    return f"{text} to {answer.text if answer.data is None else answer.data}"


@agent.skill
async def confirm(text: str, turn: Turn) -> str:
    return "yes" if await turn.confirm("Sure?") else "no"


@agent.skill
async def choose(text: str, turn: Turn) -> str:
    return await turn.choose("To?", ["Rome", "Oslo"])


@agent.skill
async def fill(text: str, turn: Turn) -> Any:
    return await turn.fill("Where to?", _FORM)


@agent.skill
async def value(text: str, turn: Turn) -> Any:
    return await turn.fill("How many?", _VALUE)


@agent.skill
async def secret(text: str, turn: Turn) -> str:
    answer = await turn.ask("The password?", sensitive=True)
    return f"{len(answer.text)} characters"


@agent.skill
async def impatient(text: str, turn: Turn) -> str:
    try:
        async with asyncio.timeout(0.05):
            await turn.ask("Anyone?")
    except TimeoutError:
        await turn.say("Continuing without client input...")
    return "done without you"


@agent.skill
async def strict(text: str, turn: Turn) -> str:
    return (await turn.ask("Anyone?", timeout=0.05)).text


@agent.skill
async def both(text: str, turn: Turn) -> str:
    one, two = await asyncio.gather(turn.ask("From?"), turn.choose("To?", ["Rome", "Oslo"]))
    return f"{one.text} to {two}"


@agent.skill
async def use(text: str, turn: Turn) -> str:
    return f"{await turn.tool('look', {'at': text})}"


@agent.skill
async def unpack(message: Message) -> dict[str, Any]:
    text, data, file = message.parts
    return {"text": text.text, "data": data.data, "url": file.url}


@agent.skill
async def grant(text: str, turn: Turn) -> str:
    await turn.authorize("A token, please.")
    return text


@agent.skill
async def hold(text: str) -> str:
    await within(gates.setdefault(text, asyncio.Event()).wait())
    return f"held {text}"


@agent.skill
async def chunks(text: str) -> Any:
    for piece in ("one", "two", "three"):
        yield piece


@agent.skill
async def fail(text: str) -> str:
    raise TaskFailed("It cannot be done.")


@agent.skill
async def crash(text: str) -> str:
    raise RuntimeError("the secret of the house")


@agent.skill
async def reject(text: str) -> str:
    raise TaskRejected("Not my job.")


@agent.skill
async def draw(text: str) -> Part:
    return Part(raw=PNG, media_type="image/png", filename="a.png")


@agent.skill
async def tabulate(text: str) -> dict[str, Any]:
    return {"rows": [1, 2]}


def nexus_message(text: str = "hi", **more: Any) -> dict[str, Any]:
    """Return a message as NEXUS has it."""
    return {"role": "user", "parts": [{"type": "text", "data": text}], **more}


def rx_message(text: str = "hi", **more: Any) -> dict[str, Any]:
    """Return a message of 0.3 without an id of its own, as R's clients may send it."""
    return {
        "kind": "message",
        "role": "user",
        "parts": [{"kind": "text", "text": text}],
        **more,
    }


def to(skill: str) -> dict[str, Any]:
    """Return the metadata that asks for a skill."""
    return {"skillId": skill}
