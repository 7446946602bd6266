"""A skill: an author's function, how a message fills its arguments, what becomes of its result."""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET

from dragoman.authoring.forms import json_schema
from dragoman.authoring.sync_turn import SyncTurn
from dragoman.authoring.turn import Turn
from dragoman.engine.running.author_code import author_place
from dragoman.engine.running.worker import Worker
from dragoman.engine.signatures import signature_of
from dragoman.errors import InvalidParams
from dragoman.model.artifact import Artifact
from dragoman.model.card import AgentSkill
from dragoman.model.message import Json, Message, Part
from dragoman.security.json_values import value_in_text

Function = Callable[..., Any]
_END = object()


Takes = Literal["message", "part", "bytes", "text", "value"]
# What a function may return that is a message already, or a part of one.
_UNTYPED = (Message, Part, Artifact)


class Parameter(msgspec.Struct, frozen=True):
    """One argument of a skill."""

    name: str
    kind: Any
    is_required: bool
    # What of a message it takes, worked out once from its type.
    takes: Takes
    # Of a union that only trying tells apart: its members, in their order.
    options: tuple[Any, ...] = ()


class Skill:
    """One thing an agent can do."""

    def __init__(
        self,
        function: Function,
        card: AgentSkill,
        *,
        is_default: bool,
        deadline: float | None = None,
        scopes: frozenset[str] = frozenset(),
    ) -> None:
        self.function = function
        self.card = card
        self.is_default = is_default
        # Seconds a task that begins with it has.
        self.deadline = deadline
        # What a caller's credential must grant.
        self.scopes = scopes
        hints = _hints(function)
        self._turn_name = ""
        self.parameters: list[Parameter] = []
        for name, parameter in signature_of(function).parameters.items():
            kind = hints.get(name, Any)
            if name == "turn" or kind is Turn or kind is SyncTurn:
                self._turn_name = name
                _check_turn(card.id, function, kind)
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(
                    f"skill {card.id}: *{name} cannot be filled from a message; give each "
                    "argument a name and a type"
                )
            else:
                required = parameter.default is parameter.empty
                _check_kind(card.id, name, kind)
                self.parameters.append(
                    Parameter(name, kind, required, _takes(kind), _options(kind))
                )
        # The name of its only parameter, if that takes a text: most skills are such.
        self._text_name = ""
        if len(self.parameters) == 1 and self.parameters[0].takes == "text":
            self._text_name = self.parameters[0].name
        self._returns = hints.get("return")
        self.may_reply = _mentions(self._returns, Message)
        self._is_async = inspect.iscoroutinefunction(function)
        self._streams_async = inspect.isasyncgenfunction(function)
        self._streams = inspect.isgeneratorfunction(function)

    @property
    def takes_turn(self) -> bool:
        """Whether its code sees the turn, and so may ask."""
        return bool(self._turn_name)

    @property
    def takes_data(self) -> bool:
        """Whether its arguments come as data: by their names, or as the value of the only one."""
        mine = [one.takes for one in self.parameters if one.takes not in ("message", "part")]
        return len(mine) > 1 or any(takes != "text" for takes in mine)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments, for skills that take structured ones."""
        properties: dict[str, Any] = {}
        for parameter in self.parameters:
            properties[parameter.name] = _schema(parameter.kind)
        required = [parameter.name for parameter in self.parameters if parameter.is_required]
        found = {"type": "object", "properties": properties, "required": required}
        return _with_shared_definitions(found)

    def result_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of what it returns: of a text, that of a string; of one that is
        yielded in chunks, that of the whole. Null is for no result. None: the annotation does not
        say, or says nothing but that, or messages, parts or files of any kind."""
        kind = self._returns
        origin = typing.get_origin(kind)
        if isinstance(origin, type) and issubclass(origin, AsyncIterator | Iterator):
            (chunk, *_) = typing.get_args(kind)
            kind = str if chunk is str else None
        if kind in (None, types.NoneType, Any) or any(_mentions(kind, one) for one in _UNTYPED):
            return None
        try:
            return _pydantic_schema(kind, "serialization") or json_schema(kind)
        except (TypeError, RuntimeError):
            # A value that JSON can hold, of a type that has no schema.
            return None

    def arguments(self, message: Message) -> dict[str, Any]:
        """Return the arguments a message gives; raises `InvalidParams` naming what is missing.

        A data part that is an object fills the parameters by name, unless the only parameter wants
        the object itself; text, files and the message go to the parameters typed for them. A text
        that does not fit is read as data if it is JSON: a chat can send nothing else.
        """
        if self._text_name and len(message.parts) == 1:
            # Most messages are one text.
            text = message.parts[0].text
            if isinstance(text, str):
                return {self._text_name: text}
        try:
            return self._filled(message)
        except InvalidParams as error:
            as_data = _with_text_as_data(message)
            if as_data is None:
                raise self._with_way(error, message) from None
        return self._filled(as_data)

    def _with_way(self, error: InvalidParams, message: Message) -> InvalidParams:
        """Return a refusal; if there was a text alone, it says what to write instead."""
        mine = [one for one in self.parameters if one.takes in ("text", "value")]
        names = [one.name for one in mine if one.is_required] or [one.name for one in mine]
        if not names or not message.text or message.data is not None:
            return error
        members = ", ".join(f'"{name}": …' for name in names)
        way = f"send data, or write it as JSON: {{{members}}}"
        return InvalidParams(f"{error.description}; {way}", field=error.field)

    def _filled(self, message: Message) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        named = self._named_arguments(message)
        files = [part for part in message.parts if part.raw is not UNSET or part.url is not UNSET]
        text_taken = False
        for parameter in self.parameters:
            field = f"message.parts:{parameter.name}"
            if parameter.takes == "message":
                arguments[parameter.name] = message
            elif parameter.name in named:
                arguments[parameter.name] = self._by_name(named, parameter, field)
            elif parameter.takes in ("bytes", "part"):
                # Each file goes to one parameter, in their order; bytes must be in the message.
                whole = parameter.takes == "part"
                part = next((file for file in files if whole or file.raw is not UNSET), None)
                if part is not None:
                    files.remove(part)
                    arguments[parameter.name] = part if whole else part.raw
            elif not text_taken and (not named or parameter.takes == "text"):
                text_taken = True
                value = message.text if named else _plain_value(message, parameter.takes)
                if value is not None and (value or not named):
                    arguments[parameter.name] = _whole(value, parameter, field)
            if parameter.is_required and parameter.name not in arguments:
                raise InvalidParams(
                    f"has nothing for the argument {parameter.name}", field="message.parts"
                )
        return arguments

    def _named_arguments(self, message: Message) -> dict[str, Any]:
        data = message.data
        if not isinstance(data, dict):
            return {}
        values = cast("dict[str, Any]", data)
        names = {parameter.name for parameter in self.parameters}
        return values if names & values.keys() else {}

    def _by_name(self, values: dict[str, Any], parameter: Parameter, field: str) -> Any:
        try:
            return _argument(values[parameter.name], parameter, field)
        except InvalidParams:
            if len(self.parameters) > 1:
                raise
            # The object may be what the only parameter wants, a member of it called the same.
            with contextlib.suppress(InvalidParams):
                return _argument(values, parameter, field)
            raise

    async def run(
        self, arguments: dict[str, Any], turn: Turn, worker: Worker, threads: ThreadPoolExecutor
    ) -> Message | None:
        """Call the function and record what it returns or yields."""
        try:
            if self._is_async:
                if self._turn_name:
                    arguments = arguments | {self._turn_name: turn}
                result = await self.function(**arguments)
            elif self._streams_async:
                if self._turn_name:
                    arguments = arguments | {self._turn_name: turn}
                return await self._record_chunks(self.function(**arguments), turn)
            else:
                waiting = SyncTurn(turn, worker, asyncio.get_running_loop())
                if self._turn_name:
                    arguments = arguments | {self._turn_name: waiting}
                call = functools.partial(_in_thread, waiting, threads)
                if self._streams:
                    chunks = _each_in_thread(call, self.function(**arguments))
                    return await self._record_chunks(chunks, turn)
                result = await call(self.function, **arguments)
            if isinstance(result, Message):
                return result
            if result is not None and (recorded := self._record(result, turn)) is not None:
                await recorded
            return None
        except asyncio.CancelledError:
            if worker.is_cancelled or worker.log.is_over:
                turn.withdraw()
            raise

    async def _record_chunks(self, chunks: AsyncGenerator[Any], turn: Turn) -> None:
        # Closed here, so that the code's own `finally` runs before the task is over.
        async with (
            contextlib.aclosing(chunks),
            turn.artifact(name=self.card.id) as writer,
        ):
            async for chunk in chunks:
                try:
                    waiting = writer.add(chunk)
                except (TypeError, ValueError) as error:
                    raise self._wrong_result(error) from None
                if waiting is not None:
                    await waiting

    def _record(self, result: Any, turn: Turn) -> Awaitable[None] | None:
        """Record what is no message; return what the code has to wait for, if anything."""
        content = result.parts if isinstance(result, Artifact) else result
        try:
            artifact = turn.artifact(content, name=self.card.id)
        except (TypeError, ValueError) as error:
            raise self._wrong_result(error) from None
        return artifact.record()

    def _wrong_result(self, error: Exception) -> Exception:
        """Return an error about a result; it names the function, since no line of the author's is
        in a traceback that begins after the code has ended."""
        if author_place(error):
            return error
        return TypeError(f"what {_place(self.function)} returned or yielded: {error}")


async def _in_thread(
    turn: SyncTurn, threads: ThreadPoolExecutor, function: Function, /, *args: Any, **kwargs: Any
) -> Any:
    """Run blocking code; when cancelled, wait for it to notice before going on."""
    # In the context of the turn, so that what it calls belongs to the same trace.
    context = contextvars.copy_context()
    queued = threads.submit(context.run, functools.partial(function, *args, **kwargs))
    future = asyncio.wrap_future(queued)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if queued.cancel():
            # Every thread was busy: it never began, and now it never will.
            raise
        turn.let_go()
        await asyncio.wait([future])
        if not future.cancelled():
            # What it ended with is of no interest; that it is not logged as lost is.
            future.exception()
        raise


async def _each_in_thread(
    call: Callable[..., Awaitable[Any]], chunks: Iterator[Any]
) -> AsyncGenerator[Any]:
    while (chunk := await call(next, chunks, _END)) is not _END:
        yield chunk


def _place(function: Function) -> str:
    """Return a function's name, and where it is if Python knows."""
    name = getattr(function, "__qualname__", type(function).__name__)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{name} ({code.co_filename}, line {code.co_firstlineno})" if code else name


def _hints(function: Function) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError:
        # Annotations that only exist for type checkers say nothing about values.
        return {}


def _mentions(annotation: Any, wanted: type) -> bool:
    if annotation is wanted:
        return True
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return any(_mentions(option, wanted) for option in typing.get_args(annotation))
    return False


def _takes(kind: Any) -> Takes:
    if kind is Message:
        return "message"
    if _mentions(kind, Part):
        return "part"
    if _mentions(kind, bytes):
        return "bytes"
    is_text = kind is str or set(typing.get_args(kind)) == {str, type(None)}
    return "text" if is_text else "value"


def _plain_value(message: Message, takes: Takes) -> Any:
    """Return what a message says to the one parameter that takes whatever there is."""
    if takes == "text":
        if any(isinstance(part.text, str) for part in message.parts):
            return message.text
        data = message.data
        return None if data is None else msgspec.json.encode(data).decode()
    if message.data is not None:
        return message.data
    return message.text or None


def _with_text_as_data(message: Message) -> Message | None:
    """Return a message with the JSON object or array that is its text as data; None: it is none."""
    text = message.text
    if message.data is not None or not text.lstrip().startswith(("{", "[")):
        return None
    value = value_in_text(text)
    if not isinstance(value, dict | list):
        return None
    others = [part for part in message.parts if not isinstance(part.text, str)]
    return msgspec.structs.replace(message, parts=[Part(data=cast("Json", value)), *others])


def _whole(value: Any, parameter: Parameter, field: str) -> Any:
    """Return what the message says as the argument. An object that is none was meant to name it."""
    try:
        return _argument(value, parameter, field)
    except InvalidParams as error:
        if isinstance(value, dict) and error.field == field and "got `object`" in error.description:
            reason = f"has no member {parameter.name}, the argument of the skill"
            raise InvalidParams(reason, field="message.parts") from None
        raise


def _argument(value: Any, parameter: Parameter, field: str) -> Any:
    """Return a value as an argument; of several options, as the first that it fits."""
    if not parameter.options:
        return _convert(value, parameter.kind, field)
    for option in parameter.options:
        with contextlib.suppress(InvalidParams):
            return _convert(value, option, field)
    names = ", ".join(getattr(option, "__name__", str(option)) for option in parameter.options)
    raise InvalidParams(_unfit(f"it is none of {names}"), field=field)


def _convert(value: Any, kind: Any, field: str) -> Any:
    if kind is Any or (kind is str and isinstance(value, str)):
        return value
    try:
        if _is_pydantic(kind):
            return cast(Any, kind).model_validate(value)
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        # The library's sentence ends with the place.
        reason, _, place = str(error).partition(" - at `$")
        raise InvalidParams(_unfit(reason), field=field + place.removesuffix("`")) from None
    except ValueError as error:
        raise InvalidParams(_unfit(_first_finding(error)), field=field) from None


def _unfit(reason: str) -> str:
    """Return the type that was wanted and what was given; of the value itself there is nothing."""
    return "does not fit the argument's type" + (f": {reason}" if reason else "")


def _first_finding(error: ValueError) -> str:
    """Return what a pydantic model says first: the member and what is wrong with it."""
    try:
        finding = cast(Any, error).errors(include_input=False, include_url=False)[0]
        return ".".join(map(str, finding["loc"])) + f": {finding['msg']}"
    except (AttributeError, TypeError, LookupError):
        return ""


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate")


def _schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a parameter's type; parts and messages have none. Bytes that are
    given by name are base64."""
    if (found := _pydantic_schema(kind)) is not None:
        return found
    if kind is bytes:
        return json_schema(kind)
    if _mentions(kind, Message) or _mentions(kind, Part) or _mentions(kind, bytes):
        return {}
    if options := _options(kind):
        return _with_shared_definitions({"anyOf": [_schema(option) for option in options]})
    return json_schema(kind)


def _options(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union of several dataclasses or models, which nothing in the value
    tells apart; empty: it is another type."""
    if not isinstance(kind, types.UnionType) and typing.get_origin(kind) is not typing.Union:
        return ()
    try:
        msgspec.json.schema(kind)
    except TypeError:
        return typing.get_args(kind)
    return ()


def _check_turn(skill: str, function: Function, kind: Any) -> None:
    """Tell the author at once that an async function cannot wait: its loop would stand still."""
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if kind is SyncTurn and is_async:
        raise TypeError(f"skill {skill}: an async function gets a Turn; SyncTurn is for plain ones")


def _pydantic_schema(kind: Any, mode: str = "validation") -> dict[str, Any] | None:
    if not _is_pydantic(kind):
        return None
    # Types that are like those of pydantic need not know of modes.
    return kind.model_json_schema() if mode == "validation" else kind.model_json_schema(mode=mode)


def _with_shared_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments, or of options, with the definitions of all of them at its root,
    which is where references look for them. Two that differ under one name stay where they are."""
    shared: dict[str, Any] = {}
    for one in schema["anyOf"] if "anyOf" in schema else schema["properties"].values():
        own: dict[str, Any] = one.get("$defs", {})
        if all(shared.get(name, found) == found for name, found in own.items()):
            shared |= own
            one.pop("$defs", None)
    return schema | {"$defs": shared} if shared else schema


def _check_kind(skill: str, name: str, kind: Any) -> None:
    """Tell the author at once about a type that no message can fill."""
    try:
        _schema(kind)
    except TypeError:
        raise TypeError(
            f"skill {skill}: no message can fill {name}: {kind}; use text, numbers, a dataclass, "
            "a msgspec or pydantic model, Part or Message"
        ) from None
