"""What of a message becomes which argument of a skill, and what is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from harness.serving import message, serving

from dragoman import Agent, Message, Part, Turn
from dragoman.errors import ConfigError
from tests.authoring.one_skill import Options, Order, Point, made, plain, raw, result, shown


async def test_text_parts_are_joined_for_a_text_argument() -> None:
    def joined(text: str) -> str:
        return text

    assert shown(await result(joined, "one", "two")) == [{"text": "one\ntwo"}]
    # Who sends data to a text argument sends its JSON.
    assert shown(await result(joined, {"data": [1]})) == [{"text": "[1]"}]


async def test_text_is_read_as_what_the_argument_is() -> None:
    def double(number: int) -> int:
        return number * 2

    assert shown(await result(double, "21")) == [{"data": 42}]
    assert shown(await result(double, {"data": 4})) == [{"data": 8}]

    def negate(flag: bool) -> bool:
        return not flag

    assert shown(await result(negate, "true")) == [{"data": False}]


async def test_data_fills_arguments_by_name() -> None:
    def add(left: int, right: int = 10) -> int:
        return left + right

    assert shown(await result(add, {"data": {"left": 1, "right": 2}})) == [{"data": 3}]
    assert shown(await result(add, {"data": {"left": 1}})) == [{"data": 11}]
    assert shown(await result(add, {"data": {"left": 1, "other": 2}})) == [{"data": 11}]


async def test_data_and_text_and_a_file_come_together() -> None:
    def describe(text: str, file: bytes, options: Options) -> list[Any]:
        return [text, len(file), options["loud"]]

    parts = ["read this", raw(b"12345"), {"data": {"options": {"loud": True}}}]
    assert shown(await result(describe, *parts)) == [{"data": ["read this", 5, True]}]


@pytest.mark.parametrize(
    "given", [{"item": "tea", "count": 2}, {"order": {"item": "tea", "count": 2}}]
)
async def test_an_object_is_read_as_a_dataclass(given: Any) -> None:
    def take(order: Order) -> str:
        assert isinstance(order, Order)
        return f"{order.count} {order.item}"

    assert shown(await result(take, {"data": given})) == [{"text": "2 tea"}]


async def test_an_object_is_read_as_a_struct_or_a_typed_dict_or_left_alone() -> None:
    def norm(point: Point) -> int:
        return point.x + point.y

    def loud(options: Options) -> bool:
        return options["loud"]

    def keys(data: dict[str, Any]) -> list[str]:
        return sorted(data)

    assert shown(await result(norm, {"data": {"x": 1, "y": 2}})) == [{"data": 3}]
    assert shown(await result(loud, {"data": {"loud": True}})) == [{"data": True}]
    assert shown(await result(keys, {"data": {"b": 1, "a": 2}})) == [{"data": ["a", "b"]}]
    # A member that happens to be called like the argument does not hide the object.
    assert shown(await result(keys, {"data": {"b": 1, "data": 2}})) == [{"data": ["b", "data"]}]


@dataclass
class Refund:
    number: int


async def test_a_union_of_dataclasses_takes_the_first_that_fits() -> None:
    def take(wanted: Order | Refund | None = None) -> str:
        return repr(wanted)

    order, refund = {"item": "tea", "count": 2}, {"number": 7}
    for given in (order, {"wanted": order}):
        assert "Order(" in shown(await result(take, {"data": given}))[0]["text"]
    for given in (refund, {"wanted": refund}):
        assert shown(await result(take, {"data": given})) == [{"text": "Refund(number=7)"}]
    assert shown(await result(take, {"data": {"wanted": None}})) == [{"text": "None"}]
    async with serving(made(take)) as site:
        given = {"message": message("x") | {"parts": [{"data": {"wanted": {"number": "x"}}}]}}
        told = await site.refusal("SendMessage", given)
    assert "message.parts:wanted: " in told["message"]
    assert "it is none of Order, Refund, NoneType" in told["message"]
    (skill,) = made(take).skills.values()
    schema = skill.schema()
    assert {"Order", "Refund"} <= schema["$defs"].keys()
    assert {"$ref": "#/$defs/Refund"} in schema["properties"]["wanted"]["anyOf"]


async def test_a_text_that_does_not_fit_is_read_as_data_if_it_is_json() -> None:
    def add(left: int, right: int = 10) -> int:
        return left + right

    def take(order: Order, note: str = "") -> str:
        return f"{order.count} {order.item} {note}"

    def either(value: str | dict[str, int]) -> Any:
        return value

    def rows(names: list[str]) -> int:
        return len(names)

    assert shown(await result(add, '{"left": 1, "right": 2}')) == [{"data": 3}]
    assert shown(await result(take, '{"order": {"item": "tea", "count": 2}, "note": "hot"}')) == [
        {"text": "2 tea hot"}
    ]
    assert shown(await result(take, '{"item": "tea", "count": 2}')) == [{"text": "2 tea "}]
    assert shown(await result(rows, '["a", "b"]')) == [{"data": 2}]
    # A text that fits stays one.
    assert shown(await result(either, '{"a": 1}')) == [{"text": '{"a": 1}'}]
    async with serving(made(add)) as site:
        told = await site.refusal("SendMessage", {"message": message("one and two")})
        assert 'write it as JSON: {"left": …}' in told["message"]
        told = await site.refusal("SendMessage", {"message": message('{"left": "x"}')})
        assert "message.parts:left: " in told["message"] and "write it" not in told["message"]


async def test_an_argument_without_a_type_takes_what_there_is() -> None:
    def kind(value) -> str:  # type: ignore[no-untyped-def]
        return type(value).__name__

    assert shown(await result(kind, "x")) == [{"text": "str"}]
    assert shown(await result(kind, {"data": {"a": 1}})) == [{"text": "dict"}]


async def test_files_go_to_arguments_for_files_in_order() -> None:
    def two(first: bytes, second: Part) -> str:
        assert isinstance(second.raw, bytes)
        return f"{first.decode()} {second.raw.decode()} {second.filename} {second.type}"

    parts = [raw(b"a"), raw(b"b", filename="b.txt", mediaType="text/plain")]
    assert shown(await result(two, *parts)) == [{"text": "a b b.txt text/plain"}]


async def test_a_file_elsewhere_is_handed_over_as_its_address() -> None:
    def where(file: Part) -> str:
        assert isinstance(file.url, str)
        return file.url

    address = {"url": "https://example.com/x"}
    assert shown(await result(where, address)) == [{"text": "https://example.com/x"}]


async def test_a_file_may_be_left_out_where_there_is_a_default() -> None:
    def size(text: str, file: bytes | None = None) -> str:
        return f"{text} {len(file or b'')}"

    assert shown(await result(size, "x")) == [{"text": "x 0"}]
    assert shown(await result(size, "x", raw(b"123"))) == [{"text": "x 3"}]

    def maybe(text: str | None = None) -> str:
        return text or "nothing"

    assert shown(await result(maybe, raw(b"1"))) == [{"text": "nothing"}]
    assert shown(await result(maybe, "x")) == [{"text": "x"}]


async def test_the_message_itself_can_be_had() -> None:
    def whole(message: Message, turn: Turn) -> list[Any]:
        return [message.message_id == turn.message.message_id, message.metadata["k"]]

    task = await result(whole, "x", metadata={"k": "v"})
    assert shown(task) == [{"data": [True, "v"]}]


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([raw(b"1")], "left"),
        ([{"data": {"right": 1}}], "left"),
        ([{"data": {"left": "x", "right": 1}}], "left"),
        ([{"data": {"left": 1.5, "right": 1}}], "left"),
        ([{"data": [1, 2]}], "left"),
        (["many"], "left"),
        ([{"data": {"left": 1}}], "right"),
    ],
)
async def test_what_does_not_fit_is_refused_by_name_and_nothing_is_made(
    parts: list[Any], named: str
) -> None:
    def add(left: int, right: int) -> int:
        raise AssertionError("never called")

    async with serving(made(add)) as site:
        params = {"message": message(None) | {"parts": []}}
        params["message"]["parts"] = [{"text": p} if isinstance(p, str) else p for p in parts]
        for method in ("SendMessage", "SendStreamingMessage"):
            refused = await site.refusal(method, params)
            assert refused["code"] == -32602 and named in refused["message"]
        assert (await site.http.post("/message:send", json=params)).status_code == 400
        assert await site.total() == 0


def test_arguments_nothing_can_fill_are_refused_when_the_skill_is_made() -> None:
    def rest(*args: str) -> None: ...
    def options(**more: str) -> None: ...

    for function in (rest, options):
        with pytest.raises(TypeError, match="cannot be filled"):
            made(function)


def test_two_skills_of_one_id_and_an_agent_without_a_name_are_refused() -> None:
    agent = made(plain)
    with pytest.raises(ConfigError, match="plain exists already"):
        agent.skill(plain)
    with pytest.raises(ConfigError, match="needs a name"):
        Agent(" ", "Nameless.")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"description": ["a", "b"]}, r"description=\['a', 'b'\]: must be str"),
        ({"icon_url": 1}, "icon_url=1: must be str | None"),
        ({"provider": "me"}, "provider='me': must be .*AgentProvider | None"),
        ({"input_modes": "text/plain"}, r"must be a list of str, as in input_modes=\['text/plain'"),
        ({"extensions": ["urn:x"]}, r"extensions=\['urn:x'\]: must be a list of AgentExtension"),
    ],
)
def test_an_agent_of_wrong_types_is_refused_when_it_is_made(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        wrong: dict[str, Any] = {"name": "Wrong", "description": "Is wrong."} | options
        Agent(**wrong)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tags": "weather"}, r"must be a list of str, as in tags=\['weather'\]"),
        ({"scopes": "pay"}, r"must be a list of str, as in scopes=\['pay'\]"),
        ({"tags": 7}, "tags=7: must be a list of str"),
        ({"examples": [7]}, r"examples=\[7\]: must be a list of str"),
        ({"deadline": "tomorrow"}, "deadline='tomorrow': must be .*timedelta"),
        ({"id": 7}, "id=7: must be str"),
    ],
)
def test_a_skill_of_wrong_types_is_refused_when_it_is_made(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        made(plain, **options)


def test_a_decorator_with_a_text_and_a_second_default_are_refused() -> None:
    wrong: Any = "shout"
    with pytest.raises(ConfigError, match="options by name: id='shout'"):
        Agent("One", "Has a skill.").skill(wrong)
    agent = made(plain, default=True)
    with pytest.raises(ConfigError, match="the skill plain is the default already"):
        agent.skill(id="other", default=True)(plain)


async def test_an_object_that_does_not_name_the_only_argument_is_told_its_name() -> None:
    async def count(to: int) -> str:
        return str(to)

    async with serving(made(count)) as site:
        given = {"message": message("x") | {"parts": [{"data": {"too": 3}}]}}
        refused = await site.refusal("SendMessage", given)
    assert "message.parts: has no member to" in refused["message"]


# Modes


@pytest.mark.parametrize(
    ("accepted", "fits"),
    [
        ([], True),
        (["text/plain"], True),
        (["image/png", "TEXT/PLAIN"], True),
        (["text/*"], True),
        (["*/*"], True),
        (["image/png"], False),
        (["application/json", "video/*"], False),
    ],
)
async def test_a_caller_that_accepts_nothing_we_produce_is_refused(
    accepted: list[str], fits: bool
) -> None:
    async with serving(made(plain, output_modes=["text/plain"])) as site:
        params = {"message": message("x"), "configuration": {"acceptedOutputModes": accepted}}
        answer = await site.answer("SendMessage", params)
        assert ("result" in answer) is fits
        if not fits:
            assert answer["error"]["code"] == -32005
            assert await site.total() == 0


async def test_a_part_of_a_type_the_skill_does_not_take_is_refused() -> None:
    async with serving(made(plain, input_modes=["text/plain", "image/*"])) as site:
        good = {"parts": [{"text": "x"}, raw(b"1", mediaType="image/png")]}
        assert shown(await site.send(None, **good))
        for part in ({"data": {}}, raw(b"1"), {"text": "x", "mediaType": "text/html"}):
            params = {"message": message(None) | {"parts": [{"text": "x"}, part]}}
            refused = await site.refusal("SendMessage", params)
            assert refused["code"] == -32005 and "message.parts[1]" in refused["message"]
        assert await site.total() == 1


async def pay(amount: int) -> str:
    """Takes an argument that is no text."""
    return f"Paid {amount}."


async def join_texts(left: str, right: str) -> str:
    """Takes two."""
    return left + right


@pytest.mark.parametrize(
    ("function", "given"), [(pay, {"amount": 3}), (join_texts, {"left": "a", "right": "b"})]
)
async def test_a_skill_takes_its_arguments_as_data_whatever_else_its_agent_takes(
    function: Callable[..., Any], given: dict[str, Any]
) -> None:
    agent = Agent("Modes", "Minds.", input_modes=["text/plain"])
    agent.skill(function)
    agent.skill(plain)
    agent.skill(id="strict", input_modes=["text/plain"])(function)
    modes = {id: skill.card.input_modes for id, skill in agent.skills.items()}
    # A skill that says what it takes means it, and a text needs nothing more.
    assert modes == {
        function.__name__: ["text/plain", "application/json"],
        "plain": [],
        "strict": ["text/plain"],
    }
    assert made(function).skills[function.__name__].card.input_modes == []
    async with serving(agent) as site:
        parts = {"parts": [{"data": given}]}
        assert shown(await site.send(None, **parts, metadata={"skillId": function.__name__}))
        for skill in ("plain", "strict"):
            sent = {"message": message(None, **parts, metadata={"skillId": skill})}
            assert (await site.refusal("SendMessage", sent))["code"] == -32005


class Unfillable:
    """A type of the author's that no JSON describes."""


def test_a_type_that_no_message_can_fill_is_refused_when_the_skill_is_made() -> None:
    async def use(thing: Unfillable) -> str:
        return str(thing)

    with pytest.raises(TypeError, match="skill use: no message can fill thing"):
        Agent("A", "B").skill(use)
