"""What modules of `dragoman gen client` are built on: calls of skills with types.

Such a module has a class for its agent, with a method for each skill; here is what the methods do.
"""

import contextlib
import hashlib
import warnings
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, get_args

import msgspec

from dragoman.client.answer import Answer
from dragoman.client.client import Client
from dragoman.client.content import Content
from dragoman.client.requests import OnRequest
from dragoman.client.streams.shown_task import Shown
from dragoman.client.streams.stream import Stream
from dragoman.client.streams.texts import StreamTexts
from dragoman.client.sync import Iteration
from dragoman.errors import InvalidAgentResponse
from dragoman.model.card import SCHEMAS_URI, AgentCard
from dragoman.model.message import Json
from dragoman.model.task import TaskState

T = TypeVar("T")
C = TypeVar("C", bound="TypedClient")
# The events of a task, for code that is not async.
Events = Iteration[Shown]
# Differences of a card that a warning has.
_MOST_TOLD = 10
# Characters of a skill's id that a sentence shows.
_SHOWN = 64


class AgentChanged(UserWarning):
    """The agent's card is not the one that the module was written from."""


class Unanswered(Exception):
    """The task came to rest without a result: it asks, failed, was rejected or canceled. `answer`
    has the task."""

    def __init__(self, skill: str, answer: Answer) -> None:
        state = answer.state.value.removeprefix("TASK_STATE_").lower() if answer.state else "empty"
        super().__init__(
            f"{skill}: the task is {state.replace('_', '-')}: {answer.text}".rstrip(": ")
        )
        self.answer = answer


class SkillSchemas(msgspec.Struct, frozen=True):
    """What a card says of the arguments and the result of a skill; None: nothing."""

    arguments: Json = None
    result: Json = None

    @property
    def fingerprint(self) -> str:
        """A digest of both."""
        return self._digest([self.arguments, self.result])

    def has(self, fingerprint: str) -> bool:
        """Tell whether a digest is of these schemas. Choices in another order are the same choices:
        earlier versions sorted them."""
        if fingerprint == self.fingerprint:
            return True
        try:
            return fingerprint == self._digest(_with_sorted_choices([self.arguments, self.result]))
        except RecursionError:
            # A card may be nested deeper than a function calls itself.
            return False

    def _digest(self, schemas: Json) -> str:
        content = msgspec.json.encode(schemas, order="deterministic")
        return hashlib.blake2b(content, digest_size=8).hexdigest()


def _with_sorted_choices(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_with_sorted_choices(one) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    members = {
        name: _with_sorted_choices(one) for name, one in cast("dict[str, Any]", schema).items()
    }
    choices = members.get("enum")
    if isinstance(choices, list):
        with contextlib.suppress(TypeError):
            # Of different types: not ours to order.
            members["enum"] = sorted(cast("list[Any]", choices))
    return members


def schemas_of(card: AgentCard) -> dict[str, SkillSchemas]:
    """Return what a card says of its skills, by id."""
    params: dict[str, Any] = {}
    for extension in card.capabilities.extensions:
        if extension.uri == SCHEMAS_URI:
            params = extension.params
    arguments, results = _by_skill(params, "schemas"), _by_skill(params, "results")
    return {
        skill.id: SkillSchemas(arguments.get(skill.id), results.get(skill.id))
        for skill in card.skills
    }


def _by_skill(params: dict[str, Any], name: str) -> dict[str, Any]:
    found = params.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def changes(card: AgentCard, known: Mapping[str, str]) -> list[str]:
    """Return how a card differs, in words, from one whose skills had these fingerprints."""
    now = schemas_of(card)
    gone = [f"it has no skill {id[:_SHOWN]!r} any more" for id in known if id not in now]
    other = [
        f"the skill {id[:_SHOWN]!r} takes or returns something else"
        for id, digest in known.items()
        if id in now and not now[id].has(digest)
    ]
    # What breaks a call first: a warning tells the first few.
    return other + gone + [f"the skill {id[:_SHOWN]!r} is new" for id in now if id not in known]


class TypedClient:
    """An agent, called skill by skill."""

    # The agent that the module was written from, and the fingerprints of its skills by id.
    agent: ClassVar[str] = ""
    skills: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        ref: str | Path | AgentCard | None = None,
        *,
        client: Client | None = None,
        on_request: OnRequest | None = None,
    ) -> None:
        """Call the agent that the module was written from, or one like it: at `ref`, or by a
        `client`, which may have credentials. `on_request` answers what the agent asks."""
        self.client = client or Client(ref or self.agent)
        self._on_request = on_request
        self._is_compared = False

    def beside(self, client: Client) -> Self:
        """Return the same with another client."""
        return type(self)(client=client, on_request=self._on_request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()

    async def changes(self) -> list[str]:
        """Return how the agent differs from the one that the module was written from, in words."""
        return changes(await self.client.look(), self.skills)

    async def call(self, skill: str, content: Content, kind: Any) -> Any:
        """Return the result of a skill as a type; raises `Unanswered` if there is none."""
        answer = await self.ask(skill, content)
        _check_answered(answer, skill)
        return _result(answer, kind, skill)

    async def ask(self, skill: str, content: Content) -> Answer:
        """Return the answer of a skill, whatever it is."""
        await self._compare()
        metadata = {"skillId": skill}
        return await self.client.send(content, metadata=metadata, on_request=self._on_request)

    async def stream_text(self, skill: str, content: Content) -> AsyncIterator[str]:
        """Yield the text of a skill as it comes; raises `Unanswered` behind it if that is not all:
        a question, or why the task failed, is no result."""
        await self._compare()
        async with self.client.stream(content, metadata={"skillId": skill}) as events:
            texts = StreamTexts()
            async for event in events:
                for text in texts.of(event):
                    yield text
            _check_answered(events.answer, skill)
            if text := texts.last(events):
                yield text

    def stream(self, skill: str, content: Content) -> Stream:
        """Return the events of a skill's task."""
        events = self.client.stream(content, metadata={"skillId": skill})
        events.before = self._compare
        return events

    @staticmethod
    def arguments(given: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a skill: those that are needed, and of the others those that are
        not None. Bytes are written as base64."""
        rest = {name: value for name, value in optional.items() if value is not None}
        return cast("dict[str, Any]", msgspec.to_builtins(given | rest))

    async def _compare(self) -> None:
        """Warn, once, if the agent has changed."""
        if self._is_compared:
            return
        found = await self.changes()
        is_first, self._is_compared = not self._is_compared, True
        if found and is_first:
            name, told = type(self).__name__, found[:_MOST_TOLD]
            if len(found) > len(told):
                told.append(f"and {len(found) - len(told)} more")
            message = (
                f"The agent has changed since {name} was written: {'; '.join(told)}. "
                f"Write it anew: dragoman gen client {self.agent}"
            )
            warnings.warn(message, AgentChanged, stacklevel=4)


class TypedSync(Generic[C]):
    """The same for code that is not async."""

    def __init__(self, agent: C) -> None:
        self._sync = agent.client.sync
        # Its own connections, on a loop of its own.
        self.agent = agent.beside(cast("Client", self._sync.client))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._sync.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a call."""
        return self._sync.loop.run(coroutine)

    def iterate(self, events: AsyncIterator[T]) -> Iteration[T]:
        """Return a stream as a plain iterator."""
        return Iteration(self._sync, events)


def _check_answered(answer: Answer, skill: str) -> None:
    if answer.message is None and answer.state is not TaskState.COMPLETED:
        raise Unanswered(skill, answer)


def _result(answer: Answer, kind: Any, skill: str) -> Any:
    """Return what an answer has, as a type; raises `InvalidAgentResponse`."""
    if kind is str:
        return answer.text
    if kind in (bytes, bytes | None):
        raw = next((part.raw for part in answer.parts if isinstance(part.raw, bytes)), None)
        if raw is None and kind is bytes:
            raise InvalidAgentResponse(f"{skill}: the answer has no file")
        return raw
    value = answer.data
    if value is None and not _is_data_or_nothing(kind):
        value = answer.text or None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidAgentResponse(
            f"{skill}: the answer is not what the card says: {error}"
        ) from None
    except TypeError:
        # Such as a union of two objects, which only their reader can tell apart.
        return value


def _is_data_or_nothing(kind: Any) -> bool:
    """Tell whether a type is for data that may be missing: a text is not the result then, but what
    the agent said beside it."""
    options = get_args(kind)
    return type(None) in options and str not in options
