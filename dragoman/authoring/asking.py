"""What a turn asks its caller: a text, a choice, yes or no, a form, or the result of a tool.

Every question is durable: code that runs again waits on with the same question, or gets the answer
that came. Several may be open at once, and each goes on with its own answer.
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, NoReturn, TypeVar, overload

import msgspec
from msgspec import UNSET, UnsetType

from dragoman.authoring.forms import Unfit, filled, schema_of
from dragoman.engine.running.asking import ask
from dragoman.engine.running.questions import QuestionAnswer, QuestionWanted
from dragoman.engine.running.worker import Worker
from dragoman.errors import InputTimeout, RequestFailed
from dragoman.model.content import Content, json_value, parts_of
from dragoman.model.message import Message, Metadata, Part
from dragoman.model.requests import Request, RequestReply, as_answer, beside, names, narrowed, plain
from dragoman.model.task import TaskState
from dragoman.security.json_values import value_in_text

T = TypeVar("T")
D = TypeVar("D")

# Characters of a prompt.
MAX_PROMPT = 100_000
_LATE = "Continuing without an answer."
_UNFIT = "That does not fit"
_YES = frozenset({"yes", "y", "true", "ok", "1"})
_NO = frozenset({"no", "n", "false", "0"})


class Confirmation(Coroutine[Any, Any, bool]):
    """A yes or no to wait for. It refuses to be tested before: like any object it would be true,
    and code that forgot `await` would go on as if the caller had agreed."""

    def __init__(self, answer: Coroutine[Any, Any, bool]) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._answer.__await__()

    def send(self, value: Any) -> Any:
        """Continue as a coroutine does, in a task of its own."""
        return self._answer.send(value)

    def throw(self, *error: Any) -> Any:
        """Continue with an exception."""
        return self._answer.throw(*error)

    def close(self) -> None:
        """End without an answer."""
        self._answer.close()

    def __bool__(self) -> NoReturn:
        self.close()
        raise TypeError("a confirmation has no answer yet: write `await turn.confirm(...)`")


class Questioner:
    """The questions of a turn. All of them take `timeout` in seconds: without an answer by then
    the task fails with `InputTimeout`, or goes on with `default` if one is given. The answer to a
    sensitive question is given to the code alone: history, streams and posts have a placeholder."""

    _worker: Worker

    @overload
    async def ask(
        self,
        content: Content,
        *,
        sensitive: bool = False,
        metadata: Metadata | None = None,
        timeout: float | None = None,
    ) -> Message: ...
    @overload
    async def ask(
        self,
        content: Content,
        *,
        sensitive: bool = False,
        metadata: Metadata | None = None,
        timeout: float | None = None,
        default: D,
    ) -> Message | D: ...
    async def ask(
        self,
        content: Content,
        *,
        sensitive: bool = False,
        metadata: Metadata | None = None,
        timeout: float | None = None,
        default: Any = UNSET,
    ) -> Any:
        """Ask the caller and wait for the answer (`input-required`), for days if need be.

        Should the process end meanwhile, the answer starts the code again: steps that are done give
        their results, questions that were answered their answers."""
        request = Request("", "text", sensitive=sensitive)
        question = wanted("ask", content, request, metadata, timeout, default)
        return await self._answer_or_default(question, default)

    async def authorize(
        self, content: Content, *, sensitive: bool = False, metadata: Metadata | None = None
    ) -> Message:
        """Say what credentials are needed and wait for word of them (`auth-required`). If that word
        is itself a secret, the question is sensitive."""
        request = Request("", "authorization", sensitive=sensitive)
        question = wanted("authorize", content, request, metadata, None, UNSET)
        question = msgspec.structs.replace(question, state=TaskState.AUTH_REQUIRED)
        return await self._answer_or_default(question, UNSET)

    async def hand_on(
        self, content: Content, place: int, requests: Sequence[Request], *, auth: bool
    ) -> Message:
        """Pass on what another agent asks; `place` is below the step that called it."""
        name, kind = ("authorize", "authorization") if auth else ("ask", "text")
        request = Request("", kind, sensitive=any(one.sensitive for one in requests))
        if len(requests) == 1 and (handoff := requests[0].handoff) is not None:
            # Encrypted to the other agent's key: it cannot be read here.
            request = Request("", "credential", sensitive=True, handoff=handoff)
        question = wanted(name, content, request, None, None, UNSET)
        state = TaskState.AUTH_REQUIRED if auth else TaskState.INPUT_REQUIRED
        question = msgspec.structs.replace(question, state=state, place=place)
        answer = await self._answered(question, UNSET)
        assert answer is not None, "without a timeout there is an answer"
        return _handed_on(answer, requests)

    async def _answer_or_default(self, wanted: QuestionWanted, default: Any) -> Any:
        answer = await self._answered(wanted, default)
        if answer is None:
            return default
        return as_answer(narrowed(answer.message, answer.request_id), answer.reply)

    async def choose(
        self,
        content: Content,
        choices: Sequence[str],
        *,
        sensitive: bool = False,
        timeout: float | None = None,
        default: str | UnsetType = UNSET,
    ) -> str:
        """Have the caller choose, and return the choice. A person may answer by its number."""
        options = list(choices)
        # A text would be a list of its letters.
        if isinstance(choices, str) or not options or len(set(options)) < len(options):
            raise ValueError("choices are a list of texts, no two alike")
        request = Request("", "choice", sensitive=sensitive, choices=options)
        return await self._value(
            "choose", content, request, timeout, default, lambda value: _choice(value, options)
        )

    def confirm(
        self,
        content: Content,
        *,
        sensitive: bool = False,
        timeout: float | None = None,
        default: bool | UnsetType = UNSET,
    ) -> Confirmation:
        """Have the caller say yes or no."""
        request = Request("", "confirmation", sensitive=sensitive)
        return Confirmation(self._value("confirm", content, request, timeout, default, _yes))

    @overload
    async def fill(
        self,
        content: Content,
        form: type[T],
        *,
        sensitive: bool = False,
        timeout: float | None = None,
    ) -> T: ...
    @overload
    async def fill(
        self,
        content: Content,
        form: type[T],
        *,
        sensitive: bool = False,
        timeout: float | None = None,
        default: D,
    ) -> T | D: ...
    @overload
    async def fill(
        self,
        content: Content,
        form: dict[str, Any],
        *,
        sensitive: bool = False,
        timeout: float | None = None,
        default: object = UNSET,
    ) -> object: ...
    async def fill(
        self,
        content: Content,
        form: Any,
        *,
        sensitive: bool = False,
        timeout: float | None = None,
        default: Any = UNSET,
    ) -> Any:
        """Have the caller fill in a form: a dataclass, a msgspec struct, a pydantic model or a JSON
        Schema. An answer that does not fit is asked for again, with the reason."""
        request = Request("", "form", sensitive=sensitive, schema=schema_of(form))
        return await self._value(
            "fill", content, request, timeout, default, lambda value: filled(form, _form_of(value))
        )

    @overload
    async def tool(
        self,
        name: str,
        args: object = None,
        *,
        schema: dict[str, Any] | None = None,
        timeout: float | None = None,
        default: object = UNSET,
    ) -> object: ...
    @overload
    async def tool(
        self, name: str, args: object = None, *, returns: type[T], timeout: float | None = None
    ) -> T: ...
    @overload
    async def tool(
        self,
        name: str,
        args: object = None,
        *,
        returns: type[T],
        timeout: float | None = None,
        default: D,
    ) -> T | D: ...
    async def tool(
        self,
        name: str,
        args: object = None,
        *,
        schema: dict[str, Any] | None = None,
        returns: Any = None,
        timeout: float | None = None,
        default: Any = UNSET,
    ) -> Any:
        """Have the caller execute a tool of its own, and return what came of it, in the type
        `returns` if there is one; `schema` is what it has to fit otherwise. Raises `RequestFailed`
        where the tool failed."""
        if returns is not None and schema is not None:
            raise TypeError("a tool's result is described by returns= or by schema=, not by both")
        form = returns if returns is not None else schema
        wanted_schema = schema_of(form) if form is not None else None
        request = Request("", "tool", name=name, args=json_value(args), schema=wanted_schema)
        prompt = f"Waiting for the result of the tool {name}."

        def read(value: Any) -> Any:
            return filled(form, value) if form is not None else value

        return await self._value(f"tool {name}", prompt, request, timeout, default, read)

    async def _value(
        self,
        name: str,
        content: Content,
        request: Request,
        timeout: float | None,
        default: Any,
        read: Callable[[Any], Any],
    ) -> Any:
        """Ask until an answer can be read; return what is read."""

        def understood(value: Any) -> Any:
            try:
                return read(value)
            except Unfit:
                if (inner := plain(value)) is value:
                    raise
                # Only now: a form may have a member of that name.
                return read(inner)

        def problem(reply: RequestReply) -> str:
            try:
                understood(reply.result)
            except Unfit as unfit:
                return f"{_UNFIT}." if request.sensitive else f"{_UNFIT}: {unfit}."
            return ""

        question = wanted(name, content, request, None, timeout, default, problem)
        answer = await self._answered(question, default)
        return understood(answer.reply.result) if answer is not None else default

    async def _answered(self, wanted: QuestionWanted, default: Any) -> QuestionAnswer | None:
        """Return the answer to a question; None: none came in time, and there is a default."""
        answer = await ask(self._worker, wanted)
        if answer is None:
            if default is UNSET:
                assert wanted.timeout is not None, "only then it is given up"
                raise InputTimeout(self._worker.log.task_id, wanted.timeout)
            return None
        # A question that is passed on from another agent may be declined towards that agent.
        is_ours = (
            wanted.problem is not None
            or wanted.lock is not None
            or (answer.reply.request_id == answer.request_id and wanted.request.handoff is None)
        )
        if is_ours and (error := answer.reply.error):
            what = f"The tool {wanted.request.name}" if wanted.request.name else "The question"
            reason = "it was declined" if wanted.request.sensitive else error
            raise RequestFailed(f"{what} has no answer: {reason}")
        return answer


def wanted(
    name: str,
    content: Content,
    request: Request,
    metadata: Metadata | None,
    timeout: float | None,
    default: Any,
    problem: Callable[[RequestReply], str] | None = None,
) -> QuestionWanted:
    prompt = parts_of(content)
    text = "\n".join(part.text for part in prompt if isinstance(part.text, str))
    if len(text) > MAX_PROMPT:
        raise ValueError(f"a question has at most {MAX_PROMPT} characters")
    return QuestionWanted(
        name,
        prompt if prompt else [Part(text="")],
        msgspec.structs.replace(request, prompt=text),
        metadata=metadata or {},
        timeout=timeout,
        late=_LATE if default is not UNSET else "",
        problem=problem,
    )


def _handed_on(answer: QuestionAnswer, requests: Sequence[Request]) -> Message:
    """Return the answer for the agent that asked, under the id of its own request where the caller
    answered ours."""
    message, reply = narrowed(answer.message, answer.request_id), answer.reply
    if len(requests) != 1 or reply.request_id not in names(message):
        return message
    (theirs,) = requests
    if not theirs.is_declared:
        # That agent may not know ids of requests.
        return as_answer(message, reply)
    if reply.request_id == theirs.request_id:
        return message
    parts = theirs.failed(reply.error) if reply.error else theirs.answered(reply.result)
    return msgspec.structs.replace(message, parts=[*parts, *beside(message)])


# Values of answers


def _choice(value: Any, options: Sequence[str]) -> str:
    text = value.strip() if isinstance(value, str) else value
    if text in options:
        return text
    if isinstance(text, str):
        alike = [one for one in options if one.casefold() == text.casefold()]
        if len(alike) == 1:
            return alike[0]
        if text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= len(options):
            return options[int(text[:6]) - 1]
    raise Unfit(f"it is one of {', '.join(options)}")


def _yes(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().casefold() if isinstance(value, str) else ""
    if word not in _YES | _NO:
        raise Unfit("it is yes or no")
    return word in _YES


def _form_of(value: Any) -> Any:
    """Return the form that a text is, where a person wrote it as JSON."""
    return value_in_text(value) if isinstance(value, str) else value
