"""What `dragoman conformance` looks at, one small check each, on the wire as it is: no second
tries, no other interface, no polling where a stream was promised.

Messages are sent over every interface of the card that we speak; tasks that are made stay there.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast

from dragoman.cli.checking.checked_agent import PATIENCE, CheckAccess, CheckedAgent, Skipped
from dragoman.client.answer import task_of
from dragoman.client.cards.interfaces import candidates
from dragoman.client.pending_request import NotServed
from dragoman.dialects.card_check import findings
from dragoman.errors import (
    A2AError,
    CardInvalid,
    CredentialsMissing,
    ExtendedCardNotConfigured,
    MethodNotFound,
    PermissionDenied,
    PushNotSupported,
    TaskNotCancelable,
    TaskNotFound,
    Unauthenticated,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model import operations as ops
from dragoman.model.card import AgentCard
from dragoman.model.events import StatusUpdate
from dragoman.model.identity import TaskId, new_id
from dragoman.model.message import Message
from dragoman.model.task import Task, TaskState
from dragoman.service import Opening, TaskPage

Status = Literal["pass", "fail", "skip"]
CATEGORIES = ("card", "interface", "wait", "capability", "task", "error", "paging")
_PAGES = 3
_SHOWN = 5
T = TypeVar("T")


class Check(NamedTuple):
    """One thing that was looked at, and what came of it."""

    name: str
    category: str
    # Binding and version; empty: of the agent as a whole.
    interface: str
    status: Status
    message: str


class Wrong(Exception):
    """The agent does not do what it should; the text says what."""


CheckFunction = Callable[[CheckedAgent], Awaitable[str]]


# The interfaces


async def _reachable(subject: CheckedAgent) -> str:
    try:
        error = await subject.refusal(_unknown())
    except NotServed as missing:
        raise Wrong(f"the card names it, and nothing is served there: {missing.public}") from None
    outcome = "a task that does not exist" if error is None else type(error).__name__
    return f"it answers: {outcome}"


async def _shapes(subject: CheckedAgent) -> str:
    subject.bodies()
    reply = await subject.ask(ops.SendMessage(message=subject.message(), wait=False))
    for body in subject.bodies():
        if reason := _other_version(body, subject):
            raise Wrong(f"the answer is not of {subject.version}: {reason}")
    return f"{type(reply).__name__} in the shapes of {subject.version}"


def _other_version(body: Any, subject: CheckedAgent) -> str:
    """Return what shows that the answer to a send is of another version."""
    if not isinstance(body, dict):
        return "it is no object"
    found = cast("dict[str, Any]", body)
    wrapper = [name for name in ("task", "message", "msg") if isinstance(found.get(name), dict)]
    inner = cast("dict[str, Any]", found[wrapper[0]]) if wrapper else found
    status = inner.get("status")
    state = str(cast("dict[str, Any]", status).get("state")) if isinstance(status, dict) else ""
    if subject.is_new:
        if not wrapper:
            return "there is neither `task` nor `message` around it"
        if state and not state.startswith("TASK_STATE_"):
            return f"the state is {state!r}"
        return "there is a `kind`" if "kind" in inner else ""
    if subject.is_rpc:
        if wrapper or "kind" not in inner:
            return "there is no `kind`"
        return f"the state is {state!r}" if state.startswith("TASK_STATE_") else ""
    # Over REST, servers of 0.3 have the shapes of the proto or those of JSON-RPC.
    return "" if wrapper or "kind" in inner else "there is neither a `kind` nor a `task` around it"


async def _refuses_versions(subject: CheckedAgent) -> str:
    if not subject.is_new:
        raise Skipped("versions are refused since 1.0")
    try:
        await subject.ask_as("99.0", _unknown())
    except VersionNotSupported:
        return "an unknown version is refused"
    except A2AError as error:
        raise Wrong(f"version 99.0 is answered with {type(error).__name__}") from None
    raise Wrong("version 99.0 is answered as if it were spoken")


# Waiting


async def _waits(subject: CheckedAgent) -> str:
    found = await subject.sample()
    if isinstance(found, Message):
        return "the answer is a message"
    if not found.status.state.is_resting:
        raise Wrong(f"a send that waits was answered in {found.status.state.value}")
    return f"a send that waits ends in {found.status.state.value}"


async def _returns(subject: CheckedAgent) -> str:
    reply = await subject.ask(ops.SendMessage(message=subject.message(), wait=False))
    if isinstance(reply, Message):
        return "the answer is a message"
    task = task_of(reply)
    again = task_of(await subject.ask(ops.GetTask(task_id=TaskId(task.id))))
    if again.id != task.id:
        raise Wrong("another task is read than the one that was made")
    return f"a send that does not wait names its task, in {task.status.state.value}"


# What the card declares


async def _streams(subject: CheckedAgent) -> str:
    operation = ops.StreamMessage(message=subject.message())
    if not subject.card.capabilities.streaming:
        return await _undeclared(subject, operation, "streams", UnsupportedOperation)
    first, last = None, None
    async with asyncio.timeout(PATIENCE), subject.stream(operation) as batches:
        async for batch in batches:
            first = first or batch
            for event in _events(batch):
                last = event
    if first is None:
        raise Wrong("the stream ended without an event")
    if isinstance(first, Message):
        return "one message, and the stream ends"
    if not isinstance(first, Opening) and subject.is_new:
        raise Wrong("the first event is no Task and no Message")
    state = _state(last)
    if state is None or not state.is_resting:
        raise Wrong(f"the stream ended although the task is in {state and state.value}")
    return f"from a Task to {state.value}"


def _events(batch: Any) -> list[Any]:
    if isinstance(batch, Opening):
        return [batch.reply.reading.task]
    return [batch] if isinstance(batch, Message) else [one.event for one in batch]


def _state(event: Any) -> TaskState | None:
    # What an artifact leaves behind is the state before it, and that was no rest.
    return event.status.state if isinstance(event, Task | StatusUpdate) else TaskState.WORKING


async def _undeclared(
    subject: CheckedAgent, operation: ops.Operation, what: str, *kinds: type[A2AError]
) -> str:
    expected = (*kinds, MethodNotFound) if not subject.is_new else kinds
    try:
        if operation.streams:
            async with asyncio.timeout(PATIENCE), subject.stream(operation) as batches:
                async for _ in batches:
                    raise Wrong(f"the card declares no {what}, and there are some")
        else:
            await subject.ask(operation)
    except expected as error:
        return f"not declared, and refused with {type(error).__name__}"
    except A2AError as error:
        raise Wrong(
            f"no {what} are declared, and the refusal is {type(error).__name__}"
            f" instead of {kinds[0].__name__}"
        ) from None
    raise Wrong(f"the card declares no {what}, and there are some")


async def _pushes(subject: CheckedAgent) -> str:
    operation = ops.ListPush(task_id=TaskId((await subject.task()).id))
    if not subject.card.capabilities.push_notifications:
        return await _undeclared(subject, operation, "push notifications", PushNotSupported)
    try:
        await subject.ask(operation)
    except MethodNotFound:
        # 0.2 has no such list.
        if subject.is_new or subject.version == "0.3":
            raise
        raise Skipped("receivers are listed since 0.3") from None
    return "declared, and the receivers of a task are listed"


async def _extended(subject: CheckedAgent) -> str:
    operation = ops.GetExtendedCard()
    if not subject.card.capabilities.extended_agent_card:
        if subject.has_one_card_rpc:
            raise Skipped("0.3 has one rpc for both cards")
        kinds = (UnsupportedOperation, ExtendedCardNotConfigured)
        return await _undeclared(subject, operation, "extended cards", *kinds)
    try:
        reply = await subject.ask(operation)
    except (Unauthenticated, PermissionDenied, CredentialsMissing):
        raise Skipped("the extended card is for callers with other credentials") from None
    if not isinstance(reply, AgentCard):
        raise Wrong("the extended card is no card")
    return f"declared, and there: {reply.name}"


# Tasks


async def _reads(subject: CheckedAgent) -> str:
    made = await subject.ended()
    read = task_of(await subject.ask(ops.GetTask(task_id=TaskId(made.id))))
    if (read.id, read.status.state) != (made.id, made.status.state):
        raise Wrong(f"the task that ended in {made.status.state.value} reads otherwise")
    short = task_of(await subject.ask(ops.GetTask(task_id=TaskId(made.id), history=0)))
    if short.history:
        raise Wrong(f"historyLength 0 shows {len(short.history)} messages")
    return "it reads as it ended, and without history where none is wanted"


async def _stays_ended(subject: CheckedAgent) -> str:
    made = await subject.ended()
    message = subject.message(task_id=made.id)
    error = await subject.refusal(ops.SendMessage(message=message, wait=False))
    if error is None:
        raise Wrong("an ended task takes another message")
    return f"a message to an ended task is refused with {type(error).__name__}"


# Errors


async def _unknown_task(subject: CheckedAgent) -> str:
    for operation in (_unknown(), ops.CancelTask(task_id=TaskId(new_id()))):
        error = await subject.refusal(operation)
        if not isinstance(error, TaskNotFound):
            outcome = "an answer" if error is None else type(error).__name__
            name = type(operation).__name__
            raise Wrong(f"{name} of a task that does not exist: {outcome} instead of TaskNotFound")
    return "TaskNotFound, for reading and for ending"


async def _not_cancelable(subject: CheckedAgent) -> str:
    made = await subject.ended()
    if made.status.state is TaskState.CANCELED:
        raise Skipped("the task was canceled")
    error = await subject.refusal(ops.CancelTask(task_id=TaskId(made.id)))
    if not isinstance(error, TaskNotCancelable):
        outcome = "allowed" if error is None else f"refused with {type(error).__name__}"
        raise Wrong(f"to cancel an ended task is {outcome} instead of TaskNotCancelable")
    return "TaskNotCancelable, for a task that has ended"


# Paging


async def _pages(subject: CheckedAgent) -> str:
    made = await subject.task()
    if not subject.is_new:
        raise Skipped("tasks are listed since 1.0")
    # Within one context: what others do to the agent meanwhile moves none of its tasks.
    context = made.context_id
    more = ops.SendMessage(message=subject.message(context_id=context))
    second = task_of(await subject.ask(more))
    seen: list[str] = []
    token = ""
    for _ in range(_PAGES):
        page = await _page(subject, context_id=context, page_size=1, page_token=token)
        if len(page.tasks) > 1:
            raise Wrong(f"a page of 1 has {len(page.tasks)} tasks")
        if any(reply.reading.task.context_id != context for reply in page.tasks):
            raise Wrong("the list of a context has tasks of others")
        seen += [reply.reading.task.id for reply in page.tasks]
        token = page.next_page_token
        if not token:
            break
    if len(set(seen)) != len(seen):
        raise Wrong("a task is on two pages")
    expected = {made.id, second.id} if second.context_id == context else {made.id}
    if not expected <= {*seen}:
        raise Wrong(f"the pages have {len(seen)} of {len(expected)} tasks of a context")
    return f"{len(seen)} pages of one task each, none twice, of the context that was asked for"


async def _page(subject: CheckedAgent, **query: Any) -> TaskPage:
    reply = await subject.ask(ops.ListTasks(**query))
    if not isinstance(reply, TaskPage):
        raise Wrong("the answer is no list of tasks")
    return reply


OF_INTERFACE: tuple[tuple[str, str, CheckFunction], ...] = (
    ("reachable", "interface", _reachable),
    ("waiting-send", "wait", _waits),
    ("immediate-send", "wait", _returns),
    ("version-true", "interface", _shapes),
    ("version-refused", "interface", _refuses_versions),
    ("streaming", "capability", _streams),
    ("push", "capability", _pushes),
    ("extended-card", "capability", _extended),
    ("task-reads", "task", _reads),
    ("task-stays-ended", "task", _stays_ended),
    ("unknown-task", "error", _unknown_task),
    ("not-cancelable", "error", _not_cancelable),
    ("pages", "paging", _pages),
)
# Without any answer, the rest would only say so again.
_GATE = "reachable"


async def smoke(
    card: AgentCard,
    raw: Mapping[str, Any],
    access: CheckAccess,
    *,
    text: str,
    categories: Sequence[str] = CATEGORIES,
    version: str = "",
    bindings: Sequence[str] = (),
) -> AsyncIterator[Check]:
    """Yield every check of the wanted categories, as soon as it is done; of all interfaces, unless
    a version or bindings are named."""
    if "card" in categories:
        yield _schema(raw)
        for check in _unspoken(card, raw):
            yield check
    try:
        found = candidates(card, raw, version=version)
    except CardInvalid as error:
        yield Check("interfaces", "interface", "", "fail", error.public)
        return
    if bindings:
        found = [one for one in found if one.interface.protocol_binding.upper() in bindings]
    subjects = [CheckedAgent(one, card, access, text) for one in found]
    answering: list[CheckedAgent] = []
    for subject in subjects:
        for name, category, function in OF_INTERFACE:
            if name != _GATE and category not in categories:
                continue
            check = await _run_check(name, category, function, subject)
            if name == _GATE and check.status == "pass":
                answering.append(subject)
            if category in categories:
                yield check
            if name == _GATE and check.status == "fail":
                break
    if "error" in categories:
        yield await _run_check("same-errors", "error", _same_errors(answering), None)
    if "task" in categories:
        yield await _run_check("one-agent", "task", _one_agent(answering), None)


def _schema(raw: Mapping[str, Any]) -> Check:
    wrong = findings(dict(raw))
    if not wrong:
        return Check("schema", "card", "", "pass", "the card is valid by the letter of its version")
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    listed = "; ".join(str(one) for one in wrong[:_SHOWN])
    return Check("schema", "card", "", "fail", listed + more)


def _unspoken(card: AgentCard, raw: Mapping[str, Any]) -> list[Check]:
    """Name the interfaces that are not looked at."""
    try:
        spoken = [one.interface for one in candidates(card, raw)]
    except CardInvalid:
        return []
    return [
        Check(
            "spoken",
            "card",
            f"{one.protocol_binding} {one.protocol_version}",
            "skip",
            "this client does not speak it",
        )
        for one in card.supported_interfaces
        if one not in spoken
    ]


async def _run_check(
    name: str,
    category: str,
    function: Callable[[Any], Awaitable[str]],
    subject: CheckedAgent | None,
) -> Check:
    label = subject.label if subject is not None else ""
    try:
        return Check(name, category, label, "pass", await function(subject))
    except Skipped as reason:
        return Check(name, category, label, "skip", str(reason))
    except Wrong as reason:
        return Check(name, category, label, "fail", str(reason))
    except TimeoutError:
        return Check(name, category, label, "fail", f"no end within {PATIENCE:g} s")
    except A2AError as error:
        return Check(name, category, label, "fail", f"{type(error).__name__}: {error.public}")


def _same_errors(subjects: Sequence[CheckedAgent]) -> CheckFunction:
    async def function(_: CheckedAgent) -> str:
        """Compare what each binding of one version says of the same thing."""
        by_version: dict[str, dict[str, str]] = {}
        for subject in subjects:
            operation = ops.CancelTask(task_id=TaskId(new_id()))
            error = await subject.refusal(operation)
            errors = by_version.setdefault(subject.version, {})
            errors[subject.label] = type(error).__name__
        if all(len(errors) < 2 for errors in by_version.values()):
            raise Skipped("no version is spoken over two bindings")
        for errors in by_version.values():
            if len({*errors.values()}) > 1:
                listed = ", ".join(f"{label}: {name}" for label, name in errors.items())
                raise Wrong(f"one error has several names: {listed}")
        return "an error has one name on every binding"

    return function


def _one_agent(subjects: Sequence[CheckedAgent]) -> CheckFunction:
    async def function(_: CheckedAgent) -> str:
        """Read a task of the first interface over the others."""
        if len(subjects) < 2:
            raise Skipped("there is one interface")
        made = await subjects[0].ended()
        for subject in subjects[1:]:
            read = task_of(await subject.ask(ops.GetTask(task_id=TaskId(made.id))))
            if read.status.state is not made.status.state:
                raise Wrong(f"{subject.label} shows the task in {read.status.state.value}")
        return f"a task of {subjects[0].label} reads the same over all interfaces"

    return function


def _unknown() -> ops.GetTask:
    return ops.GetTask(task_id=TaskId(new_id()))
