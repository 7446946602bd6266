"""Every place of a JSON value with everything that does not belong there."""

import copy
import json
from collections.abc import Iterator
from typing import Any

Path = tuple[str | int, ...]

DEEP: Any = "deep"
for _ in range(100):
    DEEP = [DEEP]

WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    10**60,
    "",
    "x",
    "TASK_STATE_UNHEARD_OF",
    "\0",
    "é\u2028\ud7ff",
    "a" * 300,
    [],
    [None],
    ["x"],
    {},
    {"x": 1},
    {"": {}},
    DEEP,
]


def paths(value: Any, here: Path = ()) -> Iterator[Path]:
    """Yield every place of a value, the whole of it first."""
    yield here
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from paths(inner, (*here, key))


def replaced(value: Any, path: Path, new: Any) -> Any:
    """Return a copy with something else in one place."""
    if not path:
        return new
    copied = copy.deepcopy(value)
    place = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return copied


def removed(value: Any, path: Path) -> Any:
    copied = copy.deepcopy(value)
    place = copied
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return copied


def mutations(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each place missing, and each place with each wrong value."""
    for path in paths(value):
        name = ".".join(map(str, path)) or "all"
        if path:
            yield f"without {name}", removed(value, path)
        for number, wrong in enumerate(WRONG):
            yield f"{name} is wrong value {number}", replaced(value, path, wrong)


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


# Texts that are no JSON, or JSON that nobody should take.
NO_JSON: dict[str, bytes] = {
    "nothing": b"",
    "spaces": b"   \n ",
    "a word": b"hello",
    "a page": b"<!doctype html><html><body>502 Bad Gateway</body></html>",
    "half an object": b'{"jsonrpc": "2.0", "id": ',
    "two values": b"{}{}",
    "a tail": b"{} trailing",
    "a mark": b"\xef\xbb\xbf{}",
    "utf-16": '{"a":1}'.encode("utf-16"),
    "latin": b'{"a":"\xe9"}',
    "broken utf-8": b'{"a":"\xc3"}',
    "overlong utf-8": b'{"a":"\xc0\xaf"}',
    "lone surrogate": b'{"a":"\\ud800"}',
    "not a number": b'{"a":NaN}',
    "infinity": b'{"a":Infinity}',
    "a huge exponent": b'{"a":1e999999}',
    "a huge number": b'{"a":' + b"9" * 5000 + b"}",
    "a number with a zero": b'{"a":01}',
    "single quotes": b"{'a':1}",
    "a comma too many": b'{"a":1,}',
    "a comment": b'{"a":1/*x*/}',
    "a control in a string": b'{"a":"\x01"}',
    "a member twice": b'{"result":{},"result":{}}',
    "brackets without end": b"[" * 100_000,
    "objects without end": b'{"a":' * 50_000,
    "a string without end": b'{"a":"' + b"x" * 100_000,
    "many members": b"{" + b",".join(b'"k%d":1' % n for n in range(5000)) + b"}",
    "a list": b"[]",
    "a batch": b'[{"jsonrpc":"2.0","id":1,"result":{}}]',
    "true": b"true",
    "null": b"null",
    "a string": b'"x"',
    "a number": b"7",
    "nul bytes": b"\0" * 64,
}
