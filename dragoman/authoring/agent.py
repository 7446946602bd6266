"""The agent: what an author writes. It is also an ASGI app, served with the settings of the
environment unless an `App` serves it."""

import functools
import inspect
import re
import reprlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import msgspec

from dragoman.authoring import hosting
from dragoman.authoring.budget import Budget, Delegation
from dragoman.authoring.skill import Function, Skill
from dragoman.authoring.turn import Turn
from dragoman.engine.event_hooks import EventHooks
from dragoman.engine.running.author_code import AuthorThreads, CodeFailed, author_code
from dragoman.engine.running.replay import Replay
from dragoman.engine.running.worker import Plan, Worker
from dragoman.errors import (
    ConfigError,
    ContentTypeNotSupported,
    InvalidParams,
    PermissionDenied,
    TaskFailed,
)
from dragoman.model.card import AgentExtension, AgentProvider, AgentSkill
from dragoman.model.identity import ANONYMOUS, Caller
from dragoman.model.message import Message, Metadata
from dragoman.model.operations import SendMessage
from dragoman.model.patterns import late_pattern
from dragoman.model.requests import TOOL_RESULT

if TYPE_CHECKING:
    # Heavy: loaded with the first call of another agent.
    from dragoman.client.client import Client

F = TypeVar("F", bound=Callable[..., Any])

ExtendedSkills = (
    Sequence[AgentSkill]
    | Callable[[Caller], Sequence[AgentSkill] | Awaitable[Sequence[AgentSkill]]]
)

ANYTHING = "*/*"
# What a part with data is, and so the arguments of a skill.
DATA_TYPE = "application/json"
# Milliseconds of the longest time that a caller can name for its task: a year.
_MAX_TIMEOUT = 365 * 86_400_000
# A scope-token of RFC 6749.
_SCOPE = late_pattern(r"[\x21\x23-\x5b\x5d-\x7e]+")
_scopes_of = attrgetter("scopes")


class Agent:
    """An agent: a name, a description and skills.

    `streaming` and `extensions` are shown in the card and enforced: what is off is refused.
    """

    def __init__(
        self,
        name: str,
        description: str,
        *,
        version: str = "1.0.0",
        provider: AgentProvider | None = None,
        documentation_url: str | None = None,
        icon_url: str | None = None,
        input_modes: Sequence[str] = (ANYTHING,),
        output_modes: Sequence[str] = (ANYTHING,),
        streaming: bool = True,
        extensions: Sequence[AgentExtension] = (),
        extended_skills: "ExtendedSkills | None" = None,
        budget: Budget | None = None,
        clients: "Sequence[Client]" = (),
    ) -> None:
        """`budget` is what one task may spend on other agents. `clients` are those that the code
        calls other agents with: tasks given before a restart are canceled with their credentials.
        `extended_skills` are shown to authenticated callers alone: a list, or a function that
        returns the list for a caller. Of those with security requirements, a caller sees those
        that its scopes fulfil."""
        _check(str, name=name, description=description, version=version)
        _check(str | None, documentation_url=documentation_url, icon_url=icon_url)
        _check(AgentProvider | None, provider=provider)
        _check_lists(str, input_modes=input_modes, output_modes=output_modes)
        _check_lists(AgentExtension, extensions=extensions)
        if not name.strip():
            raise ConfigError("an agent needs a name")
        self.title = name
        # The name in addresses, unique among the agents of one process.
        self.name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "agent"
        self.description = description
        self.version = version
        self.provider = provider
        self.documentation_url = documentation_url
        self.icon_url = icon_url
        self.input_modes = list(input_modes)
        self.output_modes = list(output_modes)
        self.streaming = streaming
        self.extensions = list(extensions)
        self.required_extensions = frozenset(e.uri for e in extensions if e.required)
        # Skills that only authenticated callers see; None: there is no extended card.
        self.extended_skills: ExtendedSkills | None = extended_skills
        self.skills: dict[str, Skill] = {}
        self.threads: AuthorThreads | None = None
        self.delegation = Delegation(budget or Budget(), clients)
        # Closed when the app that serves it stops.
        self.closing: list[Callable[[], Awaitable[None]]] = []
        # Code that sees and changes the events of its tasks.
        self.hooks = EventHooks()
        self.on_event = self.hooks.on_event
        self.transform = self.hooks.transform
        self._app: hosting.AsgiApp | None = None

    @overload
    def skill(self, function: F, /) -> F: ...

    @overload
    def skill(
        self,
        function: None = None,
        /,
        *,
        id: str = "",
        name: str = "",
        description: str = "",
        tags: Sequence[str] = (),
        examples: Sequence[str] = (),
        input_modes: Sequence[str] = (),
        output_modes: Sequence[str] = (),
        default: bool = False,
        deadline: float | timedelta | None = None,
        scopes: Sequence[str] = (),
    ) -> Callable[[F], F]: ...

    def skill(
        self,
        function: Function | None = None,
        /,
        *,
        id: str = "",
        name: str = "",
        description: str = "",
        tags: Sequence[str] = (),
        examples: Sequence[str] = (),
        input_modes: Sequence[str] = (),
        output_modes: Sequence[str] = (),
        default: bool = False,
        deadline: float | timedelta | None = None,
        scopes: Sequence[str] = (),
    ) -> Any:
        """Make a function a skill. What is not given is taken from the function itself.

        A task that begins with a skill with a deadline fails unless it ends within so many seconds,
        whatever it waits for. A skill with scopes is only for callers whose credential grants all
        of them."""
        if function is not None and not callable(function):
            raise ConfigError(f"@agent.skill takes its options by name: id={function!r}")
        _check(str, id=id, name=name, description=description)
        _check(int | float | timedelta | None, deadline=deadline)
        _check_lists(str, tags=tags, examples=examples, scopes=scopes)
        _check_lists(str, input_modes=input_modes, output_modes=output_modes)
        seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else deadline
        if seconds is not None and seconds <= 0:
            raise ConfigError("a deadline is more than 0 seconds")
        for scope in scopes:
            if not _SCOPE.fullmatch(scope):
                raise ConfigError(
                    f"scope {scope!r}: visible ASCII without quotes, as in files:read"
                )

        def register(function: Function) -> Function:
            skill_id = id or function.__name__
            if skill_id in self.skills:
                raise ConfigError(f"the skill {skill_id} exists already")
            first = next((one for one in self.skills.values() if one.is_default), None)
            if default and first:
                raise ConfigError(f"the skill {first.card.id} is the default already")
            title = name or skill_id.replace("_", " ").capitalize()
            card = AgentSkill(
                id=skill_id,
                name=title,
                description=description or inspect.getdoc(function) or title,
                tags=list(tags) or [skill_id],
                examples=list(examples),
                input_modes=list(input_modes),
                output_modes=list(output_modes),
            )
            skill = Skill(
                function, card, is_default=default, deadline=seconds, scopes=frozenset(scopes)
            )
            if skill.takes_data and not input_modes:
                skill.card = msgspec.structs.replace(card, input_modes=self._modes_with_data())
            self.skills[skill_id] = skill
            return function

        return register if function is None else register(function)

    def _modes_with_data(self) -> list[str]:
        """Return the modes of a skill whose arguments are data; none: the agent's will do."""
        has_data = any(_covers(mode, DATA_TYPE) for mode in self.input_modes)
        return [] if has_data else [*self.input_modes, DATA_TYPE]

    async def skills_for(self, caller: Caller) -> list[AgentSkill]:
        """Return the skills that a caller sees besides the public ones."""
        given = self.extended_skills
        if callable(given):
            with author_code("extended_skills"):
                found = given(caller)
                given = await found if inspect.isawaitable(found) else found
        return [skill for skill in given or [] if _is_for(skill, caller)]

    @property
    def is_scoped(self) -> bool:
        """Whether any skill is for some callers only."""
        # Asked for every message, so without a step of Python for each skill.
        return any(map(_scopes_of, self.skills.values()))

    def plan(
        self,
        operation: SendMessage,
        began: SendMessage | None = None,
        *,
        is_answer: bool = False,
        caller: Caller = ANONYMOUS,
    ) -> Plan:
        """Choose the skill and check the message against it."""
        message = operation.message
        skill = self._choose(operation, began)
        card = skill.card
        _check_modes(message, card.input_modes or self.input_modes)
        offered = card.output_modes or self.output_modes
        if not _can_produce(offered, operation.accepted_output_modes):
            raise ContentTypeNotSupported("None of the accepted output modes can be produced")
        # An answer goes to the code that asked, which knows best what to make of it.
        try:
            arguments = None if is_answer else skill.arguments(message)
        except Exception:
            # Answered further up: an error of the caller's, or an incident.
            raise
        except BaseException as error:
            # Types of the author's may have validators of their own.
            raise CodeFailed(f"the arguments of {card.id}") from error

        run = functools.partial(self._run_skill, skill, arguments)
        deadline = skill.deadline
        if operation.metadata:
            deadline = _deadline(deadline, operation.metadata)
        return Plan(run, skill.may_reply, deadline, name=card.id)

    def _run_skill(
        self, skill: Skill, arguments: dict[str, Any] | None, worker: Worker
    ) -> Awaitable[Message | None]:
        """Have a skill work on a message. `arguments`: None if the message was to answer a
        question."""
        if self.threads is None:
            self.threads = AuthorThreads(32, f"dragoman-{self.name}")
        if arguments is None:
            # The message answered no question after all, and begins a turn of its own.
            try:
                arguments = skill.arguments(worker.message)
            except InvalidParams as error:
                raise TaskFailed(error.public) from None
        turn = Turn(worker, self.threads, self.delegation)
        return skill.run(arguments, turn, worker, self.threads)

    def admit(
        self, caller: Caller, operation: SendMessage, began: SendMessage | None = None
    ) -> None:
        """Raise `PermissionDenied` if the skill of a message is not for this caller."""
        skill = self._choose(operation, began)
        if missing := skill.scopes - caller.scopes:
            raise PermissionDenied(
                f"Forbidden: Insufficient permissions for skill '{skill.card.id}'",
                skill=skill.card.id,
                scope=" ".join(sorted(missing)),
            )

    def withdraw(self, replay: Replay) -> None:
        """Cancel the tasks that other agents were given for one that no worker runs any more."""
        self.delegation.withdraw(list(replay.children.values()))

    def _choose(self, operation: SendMessage, began: SendMessage | None) -> Skill:
        """Return the skill a message names, else the one its task began with, else the default."""
        named = operation.message.metadata.get("skillId")
        if isinstance(named, str) and named in self.skills:
            # Most messages that name one do it here, and this comes first.
            return self.skills[named]
        for source in (operation, began):
            if source is None:
                continue
            for path, metadata in (
                ("message.metadata", source.message.metadata),
                ("metadata", source.metadata),
            ):
                if not metadata:
                    continue
                for name in ("skillId", "skill"):
                    wanted = metadata.get(name)
                    if wanted is None:
                        continue
                    if not isinstance(wanted, str) or wanted not in self.skills:
                        known = ", ".join(self.skills) or "none"
                        raise InvalidParams(f"is none of: {known}", field=f"{path}.{name}")
                    return self.skills[wanted]
        if not self.skills:
            raise InvalidParams("the agent has no skills", field="skillId")
        skills = self.skills.values()
        return next((s for s in skills if s.is_default), next(iter(skills)))

    def join(
        self, gateway: str, *, key: str = "", token: str = "", name: str = ""
    ) -> AbstractAsyncContextManager[str]:
        """Serve through a gateway that is dialled out to, for as long as the block lasts; it gets
        the agent's address there. No port is opened.

        `key` or `token` is the credential for the gateway. `name` is the name there, if not the
        agent's own: processes of one name and owner are one agent.
        """
        return hosting.join(self, gateway, key=key, token=token, name=name)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve as an ASGI app: `uvicorn my_agent:agent`, or mounted in a larger one."""
        if self._app is None:
            self._app = hosting.make_app(self)
        await self._app(scope, receive, send)


def _check(kind: Any, **given: object) -> None:
    """Tell the author at once about a value of another type: the card would show it to callers."""
    for name, value in given.items():
        if not isinstance(value, kind):
            wanted = kind.__name__ if isinstance(kind, type) else str(kind)
            raise ConfigError(f"{name}={reprlib.repr(value)}: must be {wanted}")


def _check_lists(kind: type, **given: object) -> None:
    """The same for lists. A text passes for a list of its letters, so it is refused by itself."""
    for name, values in given.items():
        wanted = f"{name}={reprlib.repr(values)}: must be a list of {kind.__name__}"
        if isinstance(values, str):
            raise ConfigError(f"{wanted}, as in {name}=[{reprlib.repr(values)}]")
        found = cast("Iterable[object]", values if isinstance(values, Iterable) else [None])
        if not all(isinstance(one, kind) for one in found):
            raise ConfigError(wanted)


def _deadline(own: float | None, metadata: Metadata) -> float | None:
    """Return the seconds a task has: the skill's deadline, or the caller's if that is shorter."""
    wanted = metadata.get("timeoutMs")
    if wanted is None:
        return own
    if not isinstance(wanted, int | float) or not 0 < wanted <= _MAX_TIMEOUT:
        return own
    return wanted / 1000 if own is None else min(own, wanted / 1000)


def _is_for(skill: AgentSkill, caller: Caller) -> bool:
    """Tell whether a caller's scopes fulfil any of a skill's requirements, if it has some."""
    return not skill.security_requirements or any(
        _fulfils(caller.scopes, requirement) for requirement in skill.security_requirements
    )


def _fulfils(scopes: frozenset[str], requirement: Any) -> bool:
    try:
        wanted = [scope for needed in requirement["schemes"].values() for scope in needed["list"]]
    except (KeyError, TypeError, AttributeError):
        # No caller fulfils a requirement that cannot be read.
        return False
    return all(scope in scopes for scope in wanted)


def _check_modes(message: Message, modes: Sequence[str]) -> None:
    if ANYTHING in modes:
        return
    for index, part in enumerate(message.parts):
        # The result of a request is for the code that made it, whatever modes it takes otherwise.
        is_result = part.media_type == TOOL_RESULT
        if not is_result and not any(_covers(mode, part.type) for mode in modes):
            raise ContentTypeNotSupported(
                f"message.parts[{index}]: this media type is not accepted here",
                accepted=",".join(modes),
            )


def _can_produce(offered: Sequence[str], accepted: Sequence[str]) -> bool:
    if not accepted or ANYTHING in offered:
        return True
    return any(
        _covers(mine, theirs) or _covers(theirs, mine) for mine in offered for theirs in accepted
    )


def _covers(pattern: str, kind: str) -> bool:
    """Tell whether a media type is one of those a pattern stands for.

    Compared as text: what a peer sends must never become a pattern of anything stronger."""
    pattern, kind = _bare(pattern), _bare(kind)
    if pattern == ANYTHING:
        return True
    if pattern.endswith("/*"):
        return kind.startswith(pattern[:-1])
    return kind == pattern


def _bare(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()
