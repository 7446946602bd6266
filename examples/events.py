"""Events seen and changed: card numbers are gone before anything is recorded, and ends are counted.

The same hooks are for a whole gateway: `dragoman gateway --hooks examples/events.py:everywhere`.

    dragoman serve examples/events.py
    dragoman send -a http://127.0.0.1:8000 "my card is 4111 1111 1111 1111"
"""

import re

from msgspec.structs import replace

from dragoman import Agent, ArtifactUpdate, EventContext, EventHooks, Part, StatusUpdate, Turn

agent = Agent("Teller", "Repeats what it is told, without numbers of cards.")
everywhere = EventHooks()
CARD = re.compile(r"\b(?:\d[ -]?){12}(\d{4})\b")
ended: dict[str, str] = {}


@agent.skill
async def repeat(text: str, turn: Turn) -> str:
    """Repeats a text."""
    await turn.say(text)
    return text


def hidden(parts: list[Part]) -> list[Part]:
    return [
        replace(one, text=CARD.sub(r"****\1", one.text)) if isinstance(one.text, str) else one
        for one in parts
    ]


@agent.transform
@everywhere.transform
async def hide_cards(event: object) -> object:
    if isinstance(event, ArtifactUpdate):
        return replace(event, artifact=replace(event.artifact, parts=hidden(event.artifact.parts)))
    if isinstance(event, StatusUpdate) and event.status.message is not None:
        said = replace(event.status.message, parts=hidden(event.status.message.parts))
        return replace(event, status=replace(event.status, message=said))
    return event


@agent.on_event
def note_end(event: object, context: EventContext) -> None:
    if isinstance(event, StatusUpdate) and event.status.state.is_terminal:
        ended[context.task_id] = event.status.state.name
