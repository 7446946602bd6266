"""Functions as tools: the schema is derived from their types, and arguments are checked against it.

Plain functions run in threads. A function that takes the turn may ask the caller and take steps; it
is then not a step itself.
"""

import asyncio
import contextvars
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import msgspec

from dragoman.agents.tools import MAX_DESCRIPTION, Tool, ToolCall, ToolResult, Unfinished
from dragoman.authoring.forms import in_authors_order
from dragoman.authoring.turn import Turn
from dragoman.engine.running.author_code import AuthorThreads
from dragoman.errors import ConfigError
from dragoman.model.content import json_value

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__dragoman_tool__"
# Concurrent plain functions, of all turns together.
THREADS = 32


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    function: None = None, /, *, name: str = "", description: str = ""
) -> Callable[[F], F]: ...


def tool(function: Any = None, /, *, name: str = "", description: str = "") -> Any:
    """Set the name and description of a function as a tool; by default its name and docstring."""

    def mark(function: Any) -> Any:
        setattr(function, _MARK, (name, description))
        return function

    return mark if function is None else mark(function)


class LocalTools:
    """Functions of this process."""

    def __init__(self, *functions: Callable[..., Any]) -> None:
        self._functions: dict[str, _Function] = {}
        self._threads: AuthorThreads | None = None
        for function in functions:
            made = _Function(function)
            if made.tool.name in self._functions:
                raise ConfigError(f"two tools are called {made.tool.name}; rename one")
            self._functions[made.tool.name] = made

    async def list_tools(self) -> Sequence[Tool]:
        """Return the functions as a model sees them."""
        return [function.tool for function in self._functions.values()]

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult | Unfinished:
        """Call a function."""
        function = self._functions[call.name]
        arguments = function.arguments(call.arguments)
        if not function.is_async:
            return _result(await self._in_thread(functools.partial(function.call, **arguments)))
        if not function.turn_name:
            return _result(await function.call(**arguments))

        async def go_on() -> ToolResult | Unfinished:
            return _result(await function.call(**arguments, **{function.turn_name: turn}))

        return Unfinished(go_on)

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        if self._threads is None:
            # The server recognises this name: such threads do not delay its end.
            self._threads = AuthorThreads(THREADS, "agent-tools")
        run = functools.partial(contextvars.copy_context().run, call)
        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    async def close(self) -> None:
        """Release the threads; a function that still blocks is not waited for."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)


class _Function:
    """One function, as a tool and as a callable."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.call = function
        name, description = getattr(function, _MARK, ("", ""))
        name = name or getattr(function, "__name__", "")
        description = description or inspect.getdoc(function) or ""
        self._kinds, self._required, self.turn_name = _parameters(name, function)
        self.is_async = inspect.iscoroutinefunction(function)
        if self.turn_name and not self.is_async:
            raise ConfigError(f"the tool {name} takes the turn: write it with `async def`")
        self.tool = Tool(
            name=name,
            # A long docstring is cut at the end.
            description=description[:MAX_DESCRIPTION],
            schema=_schema(name, self._kinds, self._required),
            records_itself=bool(self.turn_name),
        )

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments in their types; raises `ValueError` for those that do not fit."""
        if unknown := given.keys() - self._kinds.keys():
            raise ValueError(f"there is no argument {sorted(unknown)[0]}")
        for name in self._required:
            if name not in given:
                raise ValueError(f"the argument {name} is missing")
        arguments: dict[str, Any] = {}
        for name, value in given.items():
            try:
                # Models often write numbers as text.
                arguments[name] = msgspec.convert(value, self._kinds[name], strict=False)
            except msgspec.ValidationError as error:
                raise ValueError(f"the argument {name}: {error}") from None
        return arguments


def _parameters(name: str, function: Callable[..., Any]) -> tuple[dict[str, Any], list[str], str]:
    """Return a function's parameters with types, the required ones, and the one for the turn."""
    hints = typing.get_type_hints(function, include_extras=True)
    kinds: dict[str, Any] = {}
    required: list[str] = []
    turn_name = ""
    for key, parameter in inspect.signature(function).parameters.items():
        kind = hints.get(key, Any)
        if key == "turn" or kind is Turn:
            turn_name = key
            continue
        if parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        ):
            raise ConfigError(f"the tool {name}: a model cannot fill {key}; give it a plain name")
        kinds[key] = kind
        if parameter.default is parameter.empty:
            required.append(key)
    return kinds, required, turn_name


def _schema(name: str, kinds: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    try:
        shapes, shared = msgspec.json.schema_components(
            kinds.values(), ref_template="#/$defs/{name}"
        )
    except TypeError as error:
        raise ConfigError(f"the tool {name}: a type has no JSON Schema; {error}") from None
    schema: dict[str, Any] = {
        "type": "object",
        "properties": dict(zip(kinds, shapes, strict=True)),
        "required": required,
        "additionalProperties": False,
    }
    return in_authors_order(schema | ({"$defs": shared} if shared else {}), kinds.values())


def _result(value: Any) -> ToolResult:
    """Return a function's result as a model reads it: text unchanged, anything else as JSON."""
    if isinstance(value, ToolResult):
        return value
    if value is None:
        return ToolResult("Done.")
    if isinstance(value, str):
        return ToolResult(value)
    return ToolResult(msgspec.json.encode(json_value(value)).decode())
