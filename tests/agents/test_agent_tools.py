"""Functions as tools, what a tool may be called, and lists that are kept."""

import asyncio
import enum
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import pytest
from harness.waiting import within

from dragoman import Turn, tool
from dragoman.agents.local_tools import LocalTools
from dragoman.agents.tools import LIST_KEPT, Tool, Toolbox, ToolCall, ToolResult, tool_name
from dragoman.errors import ConfigError

NOBODY: Any = None


class Colour(enum.Enum):
    RED = "red"


class Place(msgspec.Struct):
    """Where."""

    city: str
    zip: int = 0


@tool(name="paint-it", description="Paints.")
def paint(
    place: Place,
    colour: Colour,
    layers: Annotated[int, msgspec.Meta(ge=1, description="How many.")] = 1,
    how: Literal["roll", "brush"] | None = None,
) -> dict[str, Any]:
    """Not what the model is told."""
    return {"city": place.city, "colour": colour.value, "layers": layers, "how": how}


async def result_of(provider: LocalTools, name: str, **arguments: Any) -> ToolResult:
    result = await within(provider.execute(ToolCall("c", name, arguments), NOBODY))
    assert isinstance(result, ToolResult)
    return result


async def test_a_schema_is_read_from_the_types() -> None:
    (made,) = await LocalTools(paint).list_tools()
    assert made.name == "paint-it" and made.description == "Paints."
    schema = made.schema
    assert schema["required"] == ["place", "colour"]
    assert schema["properties"]["layers"] == {
        "type": "integer",
        "minimum": 1,
        "description": "How many.",
    }
    assert schema["properties"]["place"] == {"$ref": "#/$defs/Place"}
    assert schema["$defs"]["Place"]["required"] == ["city"]
    assert schema["$defs"]["Colour"]["enum"] == ["red"]
    assert schema["properties"]["how"]["anyOf"][0]["enum"] == ["roll", "brush"]
    assert schema["additionalProperties"] is False


async def test_arguments_are_converted_to_their_types() -> None:
    given = {"place": {"city": "Oslo"}, "colour": "red", "layers": "2"}
    result = await result_of(LocalTools(paint), "paint-it", **given)
    assert msgspec.json.decode(result.content) == {
        "city": "Oslo",
        "colour": "red",
        "layers": 2,
        "how": None,
    }


@pytest.mark.parametrize(
    "given",
    [{"place": {}, "colour": "red"}, {"place": {"city": "a"}, "colour": "blue"}, {}],
)
async def test_arguments_that_do_not_fit_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"the argument (place|colour)"):
        await result_of(LocalTools(paint), "paint-it", **given)


async def test_a_plain_function_runs_beside_the_loop() -> None:
    import threading

    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    def nothing() -> None:
        pass

    provider = LocalTools(where, nothing)
    assert (await result_of(provider, "where")).content == "false"
    assert (await result_of(provider, "nothing")).content == "Done."


def test_what_no_model_could_call_is_refused_when_it_is_made() -> None:
    def many(*names: str) -> None: ...

    def odd(thing: asyncio.Event) -> None: ...

    def plain(turn: Turn) -> None: ...

    for function, told in ((many, "fill names"), (odd, "JSON Schema"), (plain, "async def")):
        with pytest.raises(ConfigError, match=told):
            LocalTools(function)
    for name in ("", "a b", "ä", "x" * 65):
        with pytest.raises(ConfigError, match="rename"):
            Tool(name=name)
    with pytest.raises(ConfigError, match="shorten"):
        Tool(name="x", description="x" * 1025)
    assert tool_name("get weather!") == "get_weather"


class Slow:
    """A provider whose list comes when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.fails = False

    async def list_tools(self) -> Sequence[Tool]:
        self.asked += 1
        self.is_asked.set()
        await self.gate.wait()
        if self.fails:
            raise OSError("away")
        return [Tool(name=f"tool{self.asked}")]

    async def execute(self, call: ToolCall, turn: Turn) -> ToolResult:
        raise AssertionError

    async def close(self) -> None:
        raise OSError("it does not close")


async def names(box: Toolbox) -> list[str]:
    return [one.tool.name for one in await within(box.offered())]


async def test_a_list_is_asked_for_once_by_all_who_wait_and_kept_for_a_while() -> None:
    now = 0.0
    slow = Slow()
    box = Toolbox([slow], now=lambda: now)
    waiting = [asyncio.create_task(names(box)) for _ in range(3)]
    await within(slow.is_asked.wait())
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    slow.gate.set()
    assert await within(asyncio.gather(*waiting[1:])) == [["tool1"], ["tool1"]]
    now = LIST_KEPT - 1
    assert await names(box) == ["tool1"]
    now = LIST_KEPT
    assert await names(box) == ["tool2"]
    assert slow.asked == 2


async def test_a_list_that_cannot_be_had_is_left_out_and_asked_for_again() -> None:
    slow = Slow()
    slow.gate.set()
    slow.fails = True
    box = Toolbox([slow, LocalTools(paint)])
    assert await names(box) == ["paint-it"]
    slow.fails = False
    assert await names(box) == ["tool2", "paint-it"]
    await box.close()
