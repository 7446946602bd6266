"""What a trigger says to its agent, made of what was posted. Pure.

`{/issue/title}` stands for the value at that JSON pointer, `{due}` for the due time; `{{` and `}}`
are braces. A value that is nothing but one placeholder is replaced by the value itself.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from dragoman.errors import InvalidParams

LONGEST_TEXT = 64 * 1024
_PLACE = re.compile(r"\{\{|\}\}|\{(due|/[^{}]*|)\}")
_DEEPEST = 20


def check(value: Any, depth: int = 0) -> None:
    """Raise `InvalidParams` for a template that could never be filled in."""
    if depth > _DEEPEST:
        raise InvalidParams("is nested too deep", field="data")
    if isinstance(value, str):
        rest = _PLACE.sub("", value)
        if "{" in rest or "}" in rest:
            raise InvalidParams(
                "has a brace that is no placeholder; write {/a/pointer}, {due}, or {{ and }}",
                field="text",
            )
    elif isinstance(value, Mapping):
        for one in cast("Mapping[str, Any]", value).values():
            check(one, depth + 1)
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            check(one, depth + 1)


def uses_due(value: Any) -> bool:
    """Tell whether a template has the due time in it."""
    return "{due}" in json.dumps(value, default=str).replace("{{", "")


def filled(value: Any, posted: Any, due: str) -> Any:
    """Return a template with its placeholders filled in; raises `InvalidParams` for a text that
    becomes too long."""
    if isinstance(value, str):
        return _filled_text(value, posted, due)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: filled(one, posted, due) for name, one in items}
    if isinstance(value, list):
        return [filled(one, posted, due) for one in cast("list[Any]", value)]
    return value


def _filled_text(text: str, posted: Any, due: str) -> Any:
    whole = _PLACE.fullmatch(text)
    if whole is not None and whole[1] is not None:
        return due if whole[1] == "due" else at(posted, whole[1])

    def replacement(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0][0]
        value = due if found[1] == "due" else at(posted, found[1])
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    made = _PLACE.sub(replacement, text)
    if len(made) > LONGEST_TEXT:
        raise InvalidParams(f"becomes longer than {LONGEST_TEXT} characters", field="text")
    return made


def at(value: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer (RFC 6901); None: there is none."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(name)
        elif isinstance(value, list) and name.isascii() and name.isdecimal() and len(name) < 10:
            items = cast("list[Any]", value)
            value = items[int(name)] if int(name) < len(items) else None
        else:
            return None
    return value
