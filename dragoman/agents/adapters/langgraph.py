"""A compiled graph of LangGraph as an agent.

A text goes into the graph's messages or its text field; an object is the state itself. Text of a
model in the graph is streamed. A graph with a checkpointer remembers: its thread is the caller's
conversation, and its interrupts are questions to the caller.
"""

import asyncio
import contextlib
import typing
import weakref
from importlib import import_module
from typing import Any, cast

from dragoman.agents.adapters.functions import titled
from dragoman.agents.adapters.wrapping import Response, conversation, wrapped
from dragoman.agents.models import text_of
from dragoman.authoring.agent import Agent
from dragoman.authoring.turn import Turn
from dragoman.engine.signatures import annotated_names
from dragoman.errors import ConfigError, InvalidParams, TaskFailed
from dragoman.model.message import Message

_UNNAMED = ("LangGraph", "")


def langgraph_agent(graph: Any, name: str) -> Agent:
    """Return an agent that runs a graph; raises `ConfigError` if no field of it takes text."""
    entry = _entry(graph, name)
    remembers = bool(getattr(graph, "checkpointer", None))
    # One run at a time in a thread: the thread has one state.
    locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def respond(turn: Turn, response: Response) -> None:
        given = _input(turn.message, entry)
        if not remembers:
            await response.finish(_output(await _run(graph, given, {}, response), given))
            return
        thread = conversation(turn)
        lock = locks.setdefault(thread, asyncio.Lock())
        config = {"configurable": {"thread_id": thread}}
        async with lock:
            if turn.attempt > 1 and (await graph.aget_state(config)).next:
                # An earlier process died within this task: the thread goes on where it stopped.
                state = None
                if not await _interrupts(graph, config):
                    state = await _run(graph, None, config, response)
            else:
                state = await _run(graph, given, config, response)
        while waiting := await _interrupts(graph, config):
            answer = await turn.ask(_question(waiting[0].value))
            async with lock:
                if not _same(waiting, await _interrupts(graph, config)):
                    raise TaskFailed("The conversation went on without an answer to the question.")
                response.restart()
                resume = _resume(waiting[0], _answered(answer))
                state = await _run(graph, resume, config, response)
        if state is None:
            state = (await graph.aget_state(config)).values
        await response.finish(_output(state, given))

    own = str(getattr(graph, "name", "") or "")
    title = titled(name) if own in _UNNAMED else own
    return wrapped(title, f"Runs the graph {title}.", respond)


async def _run(graph: Any, given: Any, config: dict[str, Any], response: Response) -> Any:
    """Run a graph until it ends or waits; return its last state."""
    state = None
    speaking = None
    modes = ["messages", "values"]
    async with contextlib.aclosing(graph.astream(given, config, stream_mode=modes)) as events:
        async for mode, event in events:
            if mode == "values":
                state = event
                continue
            message = event[0]
            if not str(getattr(message, "type", "")).lower().startswith("ai"):
                continue
            if speaking is not None and message.id != speaking:
                # Another message begins: the one before was not the answer.
                response.restart()
            speaking = message.id
            await response.write(_text(message))
    return state


async def _interrupts(graph: Any, config: dict[str, Any]) -> list[Any]:
    state = await graph.aget_state(config)
    return [interrupt for task in state.tasks for interrupt in task.interrupts]


def _same(answered_for: list[Any], waiting: list[Any]) -> bool:
    return bool(waiting) and waiting[0] == answered_for[0]


def _question(value: Any) -> Any:
    return cast(Any, value) if isinstance(value, str | dict) else str(value)


def _answered(answer: Message) -> Any:
    return text_of(answer) if answer.data is None else answer.data


def _resume(interrupt: Any, answer: Any) -> Any:
    command: Any = import_module("langgraph.types").Command
    # By its id, because several may wait; without ids there is only one.
    id = getattr(interrupt, "id", None) or getattr(interrupt, "interrupt_id", None)
    return command(resume={id: answer} if id else answer)


def _entry(graph: Any, name: str) -> str | None:
    """Return the field of the state that takes a text; None if the input is the text itself."""
    schema = getattr(getattr(graph, "builder", None), "input_schema", None)
    if not isinstance(schema, type):
        return None
    try:
        # Not the graph's JSON Schema: for an ordinary TypedDict there is none before Python 3.12.
        fields = typing.get_type_hints(schema)
    except NameError:
        # Annotations that exist for type checkers only: the names are all that is known.
        fields = dict.fromkeys(annotated_names(schema), str)
    if "messages" in fields:
        return "messages"
    if not fields:
        return None
    for field, kind in fields.items():
        if kind is str or str in typing.get_args(kind):
            return field
    raise ConfigError(
        f"{name}: its state has neither messages nor a field of text ({', '.join(fields)});"
        " give the graph an input_schema with one"
    )


def _input(message: Message, entry: str | None) -> Any:
    data = message.data
    if isinstance(data, dict):
        return cast("dict[str, Any]", data)
    text = text_of(message)
    if not text:
        raise InvalidParams("must have a text or a data part", field="message.parts")
    if entry is None:
        return text
    return {entry: [{"role": "user", "content": text}] if entry == "messages" else text}


def _output(state: Any, given: Any) -> Any:
    """Return the result of a graph: its last message, the fields that it set, or its value."""
    if not isinstance(state, dict):
        return state
    values = cast("dict[str, Any]", state)
    if values.get("messages"):
        return _text(values["messages"][-1])
    before = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    changed = {
        field: value
        for field, value in values.items()
        if not field.startswith("__") and (field not in before or before[field] != value)
    }
    return next(iter(changed.values())) if len(changed) == 1 else changed


def _text(message: Any) -> str:
    """Return the text of a message, which may be a list of blocks."""
    content = getattr(message, "content", "")
    if isinstance(content, str):
        return content
    blocks = cast("list[Any]", content)
    return "".join(
        block if isinstance(block, str) else str(block.get("text", "")) for block in blocks
    )
