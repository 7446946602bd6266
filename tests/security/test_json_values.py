"""Values are counted exactly, in slices of any size, and before any of them is made."""

import json
import random
import tracemalloc
from typing import Any

import pytest

from dragoman.errors import ParseFailed
from dragoman.security import json_values
from dragoman.security.json_values import (
    MAX_VALUES,
    check_document,
    check_values,
    value_in_text,
)
from dragoman.transports import json_text

TEXTS = ["", "a,b[{:", 'a "quoted" one', "back\\slash", '\\"', "\\", "[]", "{}", "é😀"]
MEGABYTES = 9_400_000


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(1 + _count(one) for one in value.values())
    return 1 + sum(map(_count, value)) if isinstance(value, list) else 1


def _made(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth < 6 and kind < 0.35:
        return [_made(chance, depth + 1) for _ in range(chance.randint(0, 4))]
    if depth < 6 and kind < 0.7:
        names = [f"{chance.choice(TEXTS)}{number}" for number in range(chance.randint(0, 4))]
        return {name: _made(chance, depth + 1) for name in names}
    return chance.choice([1, -1.5e3, None, True, *TEXTS])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 256 * 1024])
def test_the_count_is_exact_wherever_the_slices_end(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_values, "_SLICE_BYTES", size)
    chance = random.Random(size)
    for _ in range(300):
        value = _made(chance)
        for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
            count = _count(value)
            check_values(text.encode(), count)
            if count > 1:
                with pytest.raises(ParseFailed, match=f"more than {count - 1} values"):
                    check_values(text.encode(), count - 1)


@pytest.mark.parametrize(
    "text",
    [
        b'"' + b"," * MEGABYTES + b'"',
        b'["' + b"[{:," * (MEGABYTES // 4) + b'"]',
        b'["' + b'\\",' * (MEGABYTES // 3) + b'"]',
        b'["' + b"\\\\," * (MEGABYTES // 3) + b'"]',
        b'["' + b"\\" * MEGABYTES + b'"]',
        b" " * MEGABYTES + b"1",
    ],
    ids=["commas", "brackets", "quotes", "backslashes", "only backslashes", "space"],
)
def test_what_stands_in_a_string_is_no_value(text: bytes) -> None:
    check_values(text, 10)
    assert json_text.parse(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b",".join([b"{}"] * (MEGABYTES // 3)) + b"]",
        b"[" * MEGABYTES,
        b'{"a":' * (MEGABYTES // 5),
        b"[" + b"1," * (MEGABYTES // 2) + b"1]",
        b"[" + b'"",' * (MEGABYTES // 3) + b'""]',
        b"," * MEGABYTES,
        b"[\n" + b"{ } ,\n" * (MEGABYTES // 6) + b"{}]",
    ],
    ids=["empty objects", "deep", "deep objects", "numbers", "strings", "commas", "spaced"],
)
def test_too_many_values_are_refused_and_none_is_made(text: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ParseFailed, match="values"):
            json_text.parse(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A slice taken apart at its quotes is what takes most.
    assert peak < 24 * 1024 * 1024


def test_as_many_values_as_are_allowed_are_read() -> None:
    value = [0] * (MAX_VALUES - 1)
    text = json.dumps(value).encode()
    assert json_text.parse(text) == value
    with pytest.raises(ParseFailed, match="more than 199999 values"):
        json_text.parse(text, MAX_VALUES - 1)


async def test_large_texts_are_read_as_small_ones_are() -> None:
    texts = {
        "duplicate": b'{"a":1,"a":2}',
        "surrogate": b'["\\ud800"]',
        "long number": b"[" + b"1" * 65 + b"]",
        "deep": b"[" * 65 + b"]" * 65,
        "NaN": b"[NaN]",
        "bytes": b'["\xff"]',
        "good": b'{"a":[1,-2.5,"\\ud83d\\ude00",null]}',
    }
    for name, text in texts.items():
        large = text[:-1] + b" " * json_text.READ_IN_LINE_BYTES + text[-1:]
        if name == "good":
            assert await json_text.read(large) == await json_text.read(text) == json.loads(text)
            continue
        with pytest.raises(ParseFailed) as small_refusal:
            await json_text.read(text)
        with pytest.raises(ParseFailed) as large_refusal:
            await json_text.read(large)
        assert str(small_refusal.value) == str(large_refusal.value), name


@pytest.mark.parametrize("size", [1, 7, 256 * 1024])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"[":', "}"), ('[{"a" : 1,"b":', "}]")])
def test_a_text_is_as_deep_as_on_every_other_python(
    begin: str, end: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_values, "_SLICE_BYTES", size)
    most = 128 // (begin.count("[{") + 1)
    deep = begin * most + '"[["' + end * most
    wide = f"[{','.join(['[[1],{}]'] * 200)}]"
    for text in (deep, wide, '"' + "[" * 500 + '"'):
        check_document(text.encode())
        assert value_in_text(text) == json.loads(text)
    deeper = begin * (most + 1) + "1" + end * (most + 1)
    for text in (deeper, deeper * 2, "[" * 129, "[" * 200_000, "]" * 500 + "[" * 500):
        with pytest.raises(ParseFailed):
            check_document(text.encode())
        assert value_in_text(text) is text


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 256 * 1024])
def test_names_and_long_numbers_are_found_wherever_the_slices_end(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_values, "_SLICE_BYTES", size)
    chance = random.Random(size)
    for _ in range(100):
        value = [_made(chance), {"a:": ":"}, "1" * 80]
        text = json.dumps(value).encode()
        names = _names(value)
        assert json_values.has_names(text, names)
        assert not json_values.has_names(text, names + 1)
        assert not json_values.has_long_number(text, 64)
        assert json_values.has_long_number(text[:-1] + b"," + b"1" * 65 + b"]", 64)
        assert not json_values.has_long_number(text[:-1] + b"," + b"1" * 64 + b"]", 64)


def _names(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_names, value.values()))
    return sum(map(_names, value)) if isinstance(value, list) else 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a":1,"b":{"c":":","c":2}}', "a member twice"),
        (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
        (b"[" * 5000 + b"]" * 5000, "nested deeper than 64"),
        (b'{"a":' + b"1" * 65 + b"}", "longer than 64"),
        (b'{"a":' + b"1" * 22 + b"." + b"1" * 20 + b"e-" + b"0" * 19 + b"1}", "longer than 64"),
        (b'{"a":"\\ud800"}', "."),
        (b'{"a":NaN}', "."),
        (b'{"a":1e999}', "."),
        (b'{"a":"\xff"}', "."),
        (json.dumps({f"{n}": n for n in range(1001)}).encode(), "more than 1000 members"),
    ],
)
@pytest.mark.parametrize("length", [0, 70_000], ids=["small", "large"])
def test_a_document_of_any_size_is_held_to_the_same_rules(
    text: bytes, why: str, length: int
) -> None:
    with pytest.raises(ParseFailed, match=why):
        json_text.parse(b" " * length + text)
