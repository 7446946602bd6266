"""The connection to one agent: card, chosen interface, credentials, and second tries.

A failed request is made again where that cannot repeat work: when nothing left this machine, when
the operation only reads, or when the peer says that it works on a message once. A message keeps
its id through all of it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dragoman.client import second_tries
from dragoman.client.answer import is_empty
from dragoman.client.cards.cards import Cards, Fetched, read
from dragoman.client.cards.interfaces import InterfaceCandidate, candidates, places
from dragoman.client.cards.references import Reference, parse
from dragoman.client.credentials.credentials import ChosenCredential, Credential, challenged, choose
from dragoman.client.credentials.origins import Origins, origin_of
from dragoman.client.http import Http
from dragoman.client.pending_request import Exchanged, NotServed, Observer
from dragoman.client.remote import Heard, Idle, Remote
from dragoman.client.streams.life_signs import Silence
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.leniency import Note
from dragoman.errors import (
    A2AError,
    CardInvalid,
    ConfigError,
    CredentialsMissing,
    DeliveryUnknown,
    ExtensionRequired,
    TaskNotCancelable,
    TaskNotFound,
    Unauthenticated,
    Unreachable,
    VersionNotSupported,
)
from dragoman.model import operations as ops
from dragoman.model.card import GRPC, ONCE_URI, RESUME_URI, AgentCard, AgentInterface
from dragoman.model.identity import TaskId, new_id
from dragoman.model.record import TaskReading
from dragoman.model.task import Task, TaskState
from dragoman.security.json_values import MAX_VALUES
from dragoman.service import Batch, Call, Reply, TaskReply
from dragoman.telemetry import tracing

if TYPE_CHECKING:
    # Heavy: loaded where a signature is looked at.
    from dragoman.security.card_keys import KeySet
    from dragoman.security.card_signatures import SignatureVerdict

# Extensions this client keeps its part of.
KNOWN_EXTENSIONS = frozenset({RESUME_URI, ONCE_URI})
FOUND_LATER = (
    "the task was complete with nothing in it, and had a result when it was read once more"
)
# Seconds for which a task that is complete with nothing in it is held back to be read once more.
READ_AGAIN_WITHIN = 5.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a connection is made: what the user said of it."""

    credentials: Sequence[Credential] = ()
    version: str = ""
    oldest: str = "0.2"
    preferred: str = ""
    bindings: Sequence[str] = ()
    extensions: Sequence[str] = ()
    headers: Mapping[str, str] = {}
    origins: Sequence[str] = ()
    keys: "KeySet | None" = None
    require_signature: bool = False
    timeout: float | None = 30.0
    # How long the agent may be silent while a message or a task is with it.
    silence: Silence = Silence()
    observer: Observer | None = None
    # Values in one answer or event of the agent.
    most_values: int = MAX_VALUES
    # Seconds before the first second try; each later one waits twice as long.
    backoff: float = 0.2
    # Whether a message whose first try failed is the caller's to send again.
    sends_once: bool = False
    # Whether calls are made for another caller, whose `tracestate` may identify it.
    is_for_others: bool = False


class AgentConnection:
    """Carries operations to an agent, wherever and however its card says."""

    def __init__(
        self, ref: "str | Path | AgentCard | Fetched", http: Http, cards: Cards, options: Options
    ) -> None:
        """`ref` may be a card that was fetched before: credentials go to its origin."""
        self._ref = ref
        self._http = http
        self._cards = cards
        self.options = options
        self._opening = asyncio.Lock()
        self._fetched: Fetched | None = None
        self._candidates: list[InterfaceCandidate] = []
        self._remote: Remote | None = None
        # Whether the chosen interface has answered: from then on there is no other.
        self._is_proven = False
        self._chosen = ChosenCredential()
        self._extensions: frozenset[str] = frozenset()
        self._origins = Origins()
        # Whether the agent's streams can be taken up where they broke.
        self.has_positions = False
        # Whether a message sent twice is worked on once.
        self.works_once = False
        # What of the agent's answers was not as its version has it, and read for what it means.
        self.leniencies: list[str] = []

    # What the card says

    @property
    def fetched(self) -> Fetched:
        """The card and where it came from, once it was read."""
        if self._fetched is None:
            raise _unread()
        return self._fetched

    @property
    def card(self) -> AgentCard:
        """The card, once it was read."""
        return self.fetched.card

    @property
    def origins(self) -> Origins:
        """Where credentials may go, once the card was read."""
        return self._origins

    @property
    def interface(self) -> AgentInterface:
        """The interface that is spoken to."""
        if self._remote is None:
            raise _unread()
        return self._remote.interface

    @property
    def version(self) -> str:
        """The version that is spoken."""
        if self._remote is None:
            raise _unread()
        return self._remote.dialect.version

    @property
    def dialect(self) -> Dialect:
        """The dialect that is spoken."""
        if self._remote is None:
            raise _unread()
        return self._remote.dialect

    @property
    def unused(self) -> Sequence[Credential]:
        """Credentials that the card asks for nowhere, and that therefore stay here."""
        return self._chosen.unused

    @property
    def can_stream(self) -> bool:
        """Whether the agent says that it streams."""
        return bool(self.card.capabilities.streaming)

    def signature(self) -> "SignatureVerdict":
        """Return what is to be thought of the card's signatures, by the keys the user trusts."""
        return _verdict(self.fetched, self.options.keys)

    # Opening

    async def look(self, *, fresh: bool = False) -> AgentCard:
        """Return the card, read anew if `fresh`; nothing is chosen by it."""
        async with self._opening:
            return (await self._read_card(fresh=fresh)).card

    async def open(self) -> None:
        """Find the card and choose an interface, unless that is done."""
        if self._remote is not None:
            return
        async with self._opening:
            if self._remote is None:
                await self._settle()

    async def _settle(self) -> None:
        """Choose by the card. One that was kept is read anew before anything is refused by it, or
        a credential left out."""
        for fresh in (False, True):
            fetched = await self._read_card(fresh=fresh)
            try:
                self._choose(fetched)
            except A2AError:
                # The next try may find another card.
                self._fetched = None
                if not fetched.is_kept:
                    raise
            else:
                if not fetched.is_kept or not self._chosen.unused:
                    return

    async def _is_other_card(self, remote: Remote) -> bool:
        """After a 401: read a card that was kept anew, and choose again if it is another one."""
        async with self._opening:
            before = self.fetched
            if remote is not self._remote or not before.is_kept:
                # Another call may have done it in the meantime.
                return remote is not self._remote
            try:
                fetched = await self._read_card(fresh=True)
            except A2AError:
                # The 401 says more than that no card can be read.
                return False
            if fetched.card == before.card:
                return False
            try:
                self._choose(fetched)
            except A2AError:
                # The next call finds out for itself.
                self._fetched = before
                raise
            return True

    async def _read_card(self, *, fresh: bool = False) -> Fetched:
        if self._fetched is not None and not fresh:
            return self._fetched
        origins = Origins(self.options.origins)
        is_brought = False
        if isinstance(self._ref, Fetched):
            fetched = self._ref
        elif isinstance(self._ref, AgentCard):
            fetched = Fetched(self._ref, msgspec.to_builtins(self._ref), "", "")
            is_brought = True
        else:
            reference = parse(self._ref)
            fetched = await self._find(reference, fresh, origins.also(reference.origin))
            is_brought = reference.kind == "file"
        vouched = self._vouched(fetched)
        if is_brought:
            origins = Origins(self.options.origins, implied=_addresses(vouched.card))
        # Of a name in a catalog, it is the catalog that the user named. Nothing is changed before
        # here, so that calls under way go on with the card from before.
        self._origins = origins.also(fetched.origin)
        self._fetched = vouched
        return vouched

    def _choose(self, fetched: Fetched) -> None:
        """Choose an interface and what is sent there."""
        options = self.options
        found = candidates(
            fetched.card,
            fetched.raw,
            version=options.version,
            oldest=options.oldest,
            preferred=options.preferred,
            bindings=options.bindings,
            origin=fetched.origin,
        )
        self._check_extensions(fetched.card)
        self._chosen = choose(fetched.card, options.credentials, found[0].interface.url)
        declared = {extension.uri for extension in fetched.card.capabilities.extensions}
        required = [one.uri for one in fetched.card.capabilities.extensions if one.required]
        self._extensions = frozenset({*self.options.extensions, *required})
        self.has_positions = RESUME_URI in declared
        self.works_once = ONCE_URI in declared
        self._candidates = [place for one in found for place in places(one)]
        self._is_proven = False
        self._next()

    async def _find(self, reference: Reference, fresh: bool, origins: Origins) -> Fetched:
        """Return the card; a credential goes to its address only if that address asks for it."""
        version = self.options.version or "1.0"
        observe = self.options.observer
        if observe is not None:
            observe(Exchanged("card", "GET", reference.url or str(reference.path)))
        try:
            return await self._cards.fetch(self._http, reference, version=version, fresh=fresh)
        except Unauthenticated as error:
            challenge = error.facts.get("wwwAuthenticate", "")
            answer = challenged(challenge, self.options.credentials)
            if not answer.attached or not reference.url:
                raise CredentialsMissing(
                    "The agent shows its card only to callers it knows", wwwAuthenticate=challenge
                ) from None
            attached = await answer.attach(reference.url, self._http, origins)
            return await self._cards.fetch(
                self._http,
                reference,
                version=version,
                identity=answer.identity,
                headers=attached.onto({})[1],
                fresh=fresh,
            )

    def _vouched(self, fetched: Fetched) -> Fetched:
        """Return what the signature vouches for, if the user wants one; all of it if not."""
        if not self.options.require_signature:
            return fetched
        verdict = _verdict(fetched, self.options.keys)
        if verdict.kind != "verified":
            reason = f": {verdict.reason}" if verdict.reason else ""
            raise CardInvalid(f"The card's signature is {verdict.kind}{reason}")
        vouched = read(verdict.covered, url=fetched.url, origin=fetched.origin)
        return msgspec.structs.replace(fetched, card=vouched.card)

    def _check_extensions(self, card: AgentCard) -> None:
        extensions = {*self.options.extensions, *KNOWN_EXTENSIONS}
        missing = [
            extension.uri
            for extension in card.capabilities.extensions
            if extension.required and extension.uri not in extensions
        ]
        if missing:
            raise ExtensionRequired(
                f"The agent requires extensions that were not asked for: {', '.join(missing)}",
                extensions=",".join(missing),
            )

    def _next(self) -> None:
        candidate = self._candidates.pop(0)
        self._remote = remote_class(candidate)(
            candidate.interface,
            candidate.dialect,
            self._http,
            complete_request=self._complete_request,
            observer=self.options.observer,
            timeout=self.options.timeout,
            most_values=self.options.most_values,
            works_once=self.works_once,
        )

    async def _complete_request(
        self, url: str, headers: dict[str, str]
    ) -> tuple[str, dict[str, str]]:
        """Return a request's address and headers with everything on."""
        if self.options.headers:
            # What is secret among them only the user knows.
            self._origins.check(url)
        traced = tracing.outgoing()
        if self.options.is_for_others and "tracestate" in traced:
            traced = {name: value for name, value in traced.items() if name != "tracestate"}
        if not self.options.headers and not self._chosen.attached:
            return url, {**traced, **headers}
        attached = await self._chosen.attach(url, self._http, self._origins)
        return attached.onto({**traced, **self.options.headers, **headers})

    # Calls

    def _call(
        self,
        operation: ops.Operation,
        after: int | None = None,
        extensions: frozenset[str] = frozenset(),
    ) -> Call:
        return Call(operation=operation, after=after, extensions=self._extensions | extensions)

    async def answer(
        self,
        operation: ops.Operation,
        noted: Note | None = None,
        *,
        after: int | None = None,
        extensions: frozenset[str] = frozenset(),
    ) -> Reply:
        """Return the agent's reply, trying again where that is safe. `noted` is told what of it
        was read leniently. `extensions` are asked for besides those of all calls, from a position
        on where they have one."""
        reply = await self._answer(operation, noted, after, extensions)
        if isinstance(operation, ops.SendMessage) and isinstance(reply, TaskReply):
            return await self._filled(operation, reply, noted)
        return reply

    async def _filled(
        self, operation: ops.SendMessage, reply: TaskReply, noted: Note | None
    ) -> TaskReply:
        """Return the task that a message led to: one that is complete with nothing in it as the
        agent shows it when it is asked once more."""
        task = reply.reading.task
        if self.has_positions or not is_empty(task):
            return reply
        again = await self.read_again(task.id, operation.history, noted)
        return reply if again is None else TaskReply(TaskReading(0, again))

    async def read_again(
        self,
        task_id: str,
        history: int | None = None,
        noted: Note | None = None,
        *,
        has_spoken: bool = False,
    ) -> Task | None:
        """Return a completed task that had nothing in it as the agent shows it now; None: it still
        has nothing, or where the agent `has_spoken` nothing but that. Some agents tell of a result
        only who asks for the task."""
        operation = ops.GetTask(task_id=TaskId(task_id), history=history)
        try:
            async with asyncio.timeout(READ_AGAIN_WITHIN):
                reply = await self.answer_once(operation, noted)
        except (A2AError, TimeoutError):
            # That it is complete stays true.
            return None
        task = reply.reading.task if isinstance(reply, TaskReply) else None
        is_same = task is not None and task.id == task_id
        if task is None or not is_same or not task.status.state.is_terminal or is_empty(task):
            return None
        if has_spoken and not task.artifacts and task.status.message is None:
            return None
        self._note(FOUND_LATER, noted)
        return task

    def _note(self, words: str, noted: Note | None) -> None:
        if words not in self.leniencies:
            self.leniencies.append(words)
        if noted is not None:
            noted(words)

    async def _answer(
        self,
        operation: ops.Operation,
        noted: Note | None,
        after: int | None,
        extensions: frozenset[str],
    ) -> Reply:
        await self.open()
        tries = refusals = 0
        while True:
            remote = self._remote
            assert remote is not None, "open() chose one"
            try:
                call = self._call(operation, after, extensions)
                reply = await remote.answer(call, lambda words: self._note(words, noted))
                self._prove(remote)
                return reply
            except A2AError as error:
                refusals += isinstance(error, Unauthenticated)
                if remote.adapts(operation, error):
                    continue
                if await self._moves_on(remote, error, refusals):
                    continue
                if isinstance(operation, ops.CancelTask) and tries:
                    return await self._after_cancel(operation, error)
                tries += 1
                # A list is how a message is looked for whose answer was lost.
                asks_once = isinstance(operation, ops.SendMessage | ops.ListTasks)
                is_last = self.options.sends_once and asks_once
                if is_last or tries >= second_tries.TRIES or not self.may_repeat(operation, error):
                    raise
                await self.pause(tries, error)

    async def answer_once(self, operation: ops.Operation, noted: Note | None = None) -> Reply:
        """Return the agent's reply to one request: nothing is tried again or chosen anew."""
        await self.open()
        assert self._remote is not None, "open() chose one"
        call = self._call(operation)
        return await self._remote.answer(call, lambda words: self._note(words, noted))

    async def examine(self) -> list[str]:
        """Ask what gives the agent no work; return what of its answers was read leniently so far.
        Raises what an agent that speaks A2A would not answer."""
        with contextlib.suppress(TaskNotFound):
            await self.answer(ops.GetTask(task_id=TaskId(new_id())))
        assert self._remote is not None, "answer() chose one"
        await self._remote.learn(lambda words: self._note(words, None))
        return self.leniencies

    async def follow(
        self,
        operation: ops.Operation,
        after: int | None = None,
        heard: Heard | None = None,
        idle: Idle | None = None,
        noted: Note | None = None,
    ) -> AsyncGenerator[Batch]:
        """Yield what the agent streams, once: a break is the caller's to mend. `heard` is told of
        all that comes, comments too; `idle` is waited for after much that is no event; `noted` is
        told what was read leniently."""
        await self.open()
        refusals = 0
        while True:
            remote = self._remote
            assert remote is not None, "open() chose one"
            is_begun = False
            try:
                # Closed with us, so that a reader that stops has hung up.
                following = remote.follow(
                    self._call(operation, after),
                    heard,
                    idle,
                    lambda words: self._note(words, noted),
                )
                async with contextlib.aclosing(following) as batches:
                    async for batch in batches:
                        is_begun = True
                        self._prove(remote)
                        yield batch
                return
            except A2AError as error:
                refusals += isinstance(error, Unauthenticated)
                if is_begun:
                    raise
                if not remote.adapts(operation, error) and not await self._moves_on(
                    remote, error, refusals
                ):
                    raise

    def _prove(self, remote: Remote) -> None:
        """Note that an interface answers: from now on it is the one."""
        if remote is self._remote:
            self._is_proven = True

    async def _moves_on(self, remote: Remote, error: A2AError, refusals: int) -> bool:
        """Answer a failure before anything worked: other credentials, or another interface."""
        if isinstance(error, Unauthenticated) and self._chosen.refused() and refusals == 1:
            return True
        if isinstance(error, Unauthenticated) and await self._is_other_card(remote):
            return True
        if isinstance(error, Unauthenticated) and not self._chosen.attached:
            missing = CredentialsMissing()
            missing.facts, missing.code = error.facts, error.code
            raise missing from error
        is_elsewhere = isinstance(error, NotServed | VersionNotSupported) or (
            isinstance(error, Unreachable)
            and not isinstance(error, DeliveryUnknown)
            and error.code is None
        )
        if not is_elsewhere:
            return False
        if remote is not self._remote:
            # Another call found the same before, and has moved on already.
            return True
        is_served = not isinstance(error, NotServed)
        if isinstance(error, Unreachable) and is_served and not error.is_sent:
            # The host does not accept connections: its other interfaces will not either.
            here = _origin(remote.interface)
            others = [item for item in self._candidates if _origin(item.interface) != here]
        else:
            others = self._candidates
        if self._is_proven or not others:
            return False
        self._candidates.remove(chosen := others[0])
        self._candidates.insert(0, chosen)
        self._next()
        return True

    def may_repeat(self, operation: ops.Operation, error: A2AError) -> bool:
        """Say whether a request is worth making again, and cannot do anything twice."""
        return second_tries.may_repeat(operation, error, works_once=self.works_once)

    async def pause(self, tries: int, error: A2AError) -> None:
        """Wait before another try."""
        await second_tries.pause(tries, error, self.options.backoff)

    async def _after_cancel(self, operation: ops.CancelTask, error: A2AError) -> Reply:
        """A cancel whose answer was lost may have worked: then the second one is refused."""
        if not isinstance(error, TaskNotCancelable):
            raise error
        reply = await self.answer(ops.GetTask(task_id=operation.task_id))
        if isinstance(reply, TaskReply) and reply.reading.task.status.state is TaskState.CANCELED:
            return reply
        raise error


def remote_class(candidate: InterfaceCandidate) -> type[Remote]:
    """Return what speaks to an interface."""
    if candidate.interface.protocol_binding.upper() != GRPC:
        return Remote
    # Loads protobuf, for those who need it.
    from dragoman.client.grpc_remote import GrpcRemote

    return GrpcRemote


def _unread() -> ConfigError:
    return ConfigError(
        "nothing is known of the agent yet: connect() or the first call reads its card"
    )


def _origin(interface: AgentInterface) -> str:
    try:
        return origin_of(interface.url)
    except ConfigError:
        # Where that leads is found out when it is called.
        return interface.url


def _verdict(fetched: Fetched, keys: "KeySet | None") -> "SignatureVerdict":
    from dragoman.security.card_keys import KeySet
    from dragoman.security.card_signatures import verify

    return verify(fetched.raw, keys or KeySet([]))


def _addresses(card: AgentCard) -> list[str]:
    return [interface.url for interface in card.supported_interfaces]
