"""`dragoman send`: one message to an agent, and what comes of it."""

import mimetypes
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.calling.outcome import FAIL, check_outcome
from dragoman.cli.failures import usage
from dragoman.cli.grammar import GivenOption, command, command_words
from dragoman.cli.hints import again
from dragoman.cli.invocation import Invocation
from dragoman.cli.json_source import read_file, read_json
from dragoman.cli.option import option

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.cli.session import Session
    from dragoman.client.streams.stream import Stream
    from dragoman.model.message import Message, Part
    from dragoman.model.task import Task

# The skill of a gateway that gives tasks to others.
_DELEGATES = "task-delegation"
# Skills of a card that a note names.
_SHOWN = 20
# Above this a URL is the better way.
_LARGE = 8 * 1024 * 1024
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE | re.ASCII)
# What a text does not begin with and an agent's address does.
_ADDRESS = re.compile(r"https?://|(?:localhost|[\w-]+(?:\.[\w-]+)+)(?::\d+)?(?:/|$)")
_TYPE = re.compile(r"[!#$&^_.+\w-]+/[!#$&^_.+\w-]+(\s*;.*)?", re.ASCII)
_PARTS = ("text", "file", "data", "")


@command("send", defaults={"wait": "true"})
@click.argument("words", nargs=-1, metavar="[TEXT]")
@option(
    "--text", aliases=("--text-part",), multiple=True, metavar="<s>", help="A text. Repeatable."
)
@option(
    "--file",
    aliases=("--file-part",),
    multiple=True,
    metavar="<path|url>",
    help="A file, sent whole, or an address, sent as it is. Repeatable.",
)
@option(
    "--data",
    aliases=("--data-part",),
    multiple=True,
    metavar="<path|->",
    help="JSON from a file, from stdin (-), or written here. Repeatable.",
)
@option("--media-type", multiple=True, metavar="<t>", help="Type of the part before it.")
@option(
    "--skill",
    default="",
    metavar="<name>",
    help="The skill to use: its id, or its name in the card.",
)
@option("--message-id", default="", metavar="<id>", help="Send a message again under this id.")
@option("--history", type=click.IntRange(0), metavar="<n>", help="Earlier messages to show.")
@option("--accept", multiple=True, metavar="<type>", help="Output type to accept. Repeatable.")
@FAIL
def send(
    run: Invocation,
    skill: str,
    message_id: str,
    history: int | None,
    accept: tuple[str, ...],
    fail: bool,
    **parts: Any,
) -> None:
    """Send a message to an agent, and wait until its task ends or asks something.

    Text, files and data become parts in the order they are written.
    """
    check_delivery(run)
    if skill and {"skillId", "skill"} & run.settings.metadata.keys():
        raise usage("--skill and --metadata both name a skill")
    content = parts_of(run, command_words())
    from dragoman.cli.session import Session, talk

    about: dict[str, Any] = {
        "task_id": run.settings.task_id,
        "context_id": run.settings.context_id,
        "message_id": message_id,
        "metadata": run.settings.metadata or None,
        "accept": accept,
        "history": history,
    }

    async def work(session: Session) -> None:
        chosen = {"message_metadata": {"skillId": _skill_id(session, skill)}} if skill else {}
        await deliver(session, content, about | chosen)

    talk(run, work, live=True)
    check_outcome(run, fail=fail)


def _skill_id(session: "Session", name: str) -> str:
    """Return the id of a skill by what the card calls it; what is not in the card goes out as it
    was typed: an extended card, or the agents behind a gateway, may have it."""
    skills = session.agent.card.skills
    if any(skill.id == name for skill in skills):
        return name
    named = [skill.id for skill in skills if skill.name.casefold() == name.casefold()]
    if len(named) == 1:
        return named[0]
    if len(named) > 1:
        raise usage(f"several skills are called so: name one by its id, {', '.join(named)}")
    if any(skill.id == _DELEGATES for skill in skills):
        # A gateway has the skills of its agents.
        return name
    known = ", ".join(skill.id for skill in skills[:_SHOWN]) or "none"
    session.out.note("Note", f"the card has no skill {name} (it has: {known}); the agent decides")
    return name


def check_delivery(run: Invocation) -> None:
    """Refuse to wait and not to wait at once."""
    settings = run.settings
    if settings.is_given("async") and settings.at_once:
        if settings.is_given("wait") and settings.wait:
            raise usage("--async and --wait exclude each other", again(run, off=("--wait",)))
        if settings.stream:
            raise usage("--async and --stream exclude each other", again(run, off=("--stream",)))


async def deliver(session: "Session", content: "Sequence[Part]", about: dict[str, Any]) -> None:
    """Send, and show what comes of it as the options say."""
    settings, agent = session.settings, session.agent
    session.out.progress("sending")
    if not settings.waits and not settings.stream:
        answer = await agent.send(content, wait=False, **about)
        conclude(session, answer.task, answer.message)
        return
    stream = agent.stream(content, poll_interval=settings.explicit_interval, **about)
    await follow(session, stream)


async def follow(session: "Session", stream: "Stream", *, wrapped: bool = True) -> None:
    """Show a stream as it comes, or what it led to."""
    from dragoman.model.events import ArtifactUpdate

    event = None
    async with stream:
        async for event in stream:
            if session.settings.stream:
                session.waiting(event)
                show(session, stream, event)
            else:
                session.progress(event)
    answer = stream.answer
    if not session.settings.stream:
        conclude(session, answer.task, answer.message, wrapped=wrapped)
    elif answer.task is not None:
        if not session.out.is_json and isinstance(event, ArtifactUpdate):
            session.out.field("Task", answer.task.id)
            session.out.field("Context", answer.task.context_id)
            session.out.field("State", answer.task.status.name)
        session.close(answer.task)
    session.out.close()


def show(session: "Session", stream: "Stream", event: Any) -> None:
    """Show one event; of an agent that is polled, the task as it stands."""
    from dragoman.model.message import Message

    if session.out.is_json and not session.can_stream and not isinstance(event, Message):
        task = stream.task
        assert task is not None, "an event that is no message belongs to a task"
        session.out.event(task)
    else:
        session.out.event(event)


def conclude(
    session: "Session", task: "Task | None", message: "Message | None", *, wrapped: bool = True
) -> None:
    """Show the one thing that came of it."""
    from dragoman.cli.output import bare, stream_response

    out = session.out
    if task is not None:
        session.know(task.id, task.context_id, task.status)
        if out.is_json:
            out.json(stream_response(task) if wrapped else bare(task))
        else:
            out.task(task)
        session.close(task)
    elif message is not None:
        session.know(message.task_id, message.context_id)
        if out.is_json:
            out.json(stream_response(message))
        else:
            out.answer(message)
            if message.context_id:
                out.field("Resume", session.resume_context(message.context_id))
    else:
        from dragoman.errors import InvalidAgentResponse

        raise InvalidAgentResponse("The agent answered neither with a task nor with a message")


# The parts


def parts_of(run: Invocation, command_words: Sequence[GivenOption]) -> "list[Part]":
    """Return the parts of a message in the order in which they were written."""
    import msgspec

    found: list[Part] = []
    has_type = True
    positional = stdin = 0
    for one in command_words:
        if one.name == "media_type":
            if has_type:
                raise usage("--media-type comes once after the part it belongs to")
            if not _TYPE.fullmatch(one.value):
                raise usage("--media-type must be a media type such as application/pdf")
            found[-1] = msgspec.structs.replace(found[-1], media_type=one.value)
            has_type = True
        elif one.name in _PARTS:
            positional += not one.name
            stdin += one.name == "data" and one.value == "-"
            if positional > 1:
                texts = [one.value for one in command_words if not one.name]
                if not run.settings.agent_card and _ADDRESS.match(texts[0]):
                    raise usage(
                        f"which agent? -a {texts[0]} names it",
                        again(run, "-a", texts[0], off=texts[:1]),
                    )
                raise usage(
                    f"one text stands without --text; put quotes around it: {one.value!r}",
                    _in_quotes(run, texts),
                )
            if stdin > 1:
                raise usage("stdin can be read once")
            found.append(_part(run, one))
            has_type = False
    if not found:
        raise usage("a message needs a text, --file or --data", again(run, "hello"))
    # A type that is written counts; only without one it is inferred.
    return [_typed(part) for part in found]


def _in_quotes(run: Invocation, texts: Sequence[str]) -> str | None:
    """Return the command with its texts as one."""
    joined = again(run, off=texts)
    return joined and f"{joined} {shlex.quote(' '.join(texts))}"


def _part(run: Invocation, one: GivenOption) -> "Part":
    from dragoman.model.message import Part

    match one.name:
        case "file" if _URL.match(one.value):
            return Part(url=one.value)
        case "file":
            path = run.folder / Path(one.value).expanduser()
            body = read_file(path, one.value)
            if len(body) > _LARGE:
                run.has_large_file = True
                run.out.warn(f"{one.value} has {len(body):,} bytes; --file <url> spares the way")
            return Part(raw=body, filename=path.name)
        case "data":
            return Part(data=read_json(run, one.value, "--data"))
        case _:
            return Part(text=one.value)


def _typed(part: "Part") -> "Part":
    import msgspec

    if part.media_type:
        return part
    if isinstance(part.raw, bytes):
        inferred = mimetypes.guess_type(part.filename, strict=False)[0]
        return msgspec.structs.replace(part, media_type=inferred or "application/octet-stream")
    if part.data is not msgspec.UNSET:
        return msgspec.structs.replace(part, media_type="application/json")
    return part
