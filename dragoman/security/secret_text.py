"""Secrets inside a text: pairs and members by their name, and what looks like a credential.

What is said by a stranger is read with bounded patterns, in time that grows with its length. The
names are those of `secret_names`; values that are known to be secrets are hidden by those who know
them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote_plus

from dragoman.model.patterns import late_pattern
from dragoman.security.secret_names import Place, holds_secret, is_about, words

HIDDEN = "<redacted>"


# Members of a card whose members are named by its author: `{"apiKey": ["scope"]}`.
_LABELLED = frozenset({("security",), ("security", "schemes"), ("schemes",)})
# Deeper than anything that is meant; what is below is not shown.
_DEEPEST = 64
# How often JSON may stand in a string of JSON before all of it is hidden.
_DEEPEST_TEXT = 8
_NAME = r"[A-Za-z0-9_\u0080-\U0010ffff%.\[\]-]"
# `"name": "value"`, also as it looks inside another string, and as Python prints it.
_MEMBER = late_pattern(
    r"(?P<q>\\{0,16}[\"'])(?P<name>(?:[^\"'\\\n]|\\{1,16}u[0-9A-Fa-f]{4}){1,200})(?P=q)(?P<colon>\s{0,8}:\s{0,8})"
    r"(?:(?P<v>\\{0,16}[\"'])(?P<value>.*?)(?P<end>(?<!\\)(?P=v)|\Z)|(?P<number>-?\d[\d.eE+-]*))",
    re.DOTALL,
)
# The same where the value is a list or an object, and what is in one: strings, and brackets.
_OPENED = late_pattern(
    r"(?P<q>\\{0,16}[\"'])(?P<name>(?:[^\"'\\\n]|\\{1,16}u[0-9A-Fa-f]{4}){1,200})(?P=q)"
    r"\s{0,8}:\s{0,8}(?=[\[{])"
)
_BRACKET = r"(?P<open>[\[{])|[\]}]"
# Members that say what another one is called whose value is beside it: `{"name": …, "value": …}`.
_LABELS, _VALUES = frozenset({"name", "key", "header"}), frozenset({"value", "values"})
_ESCAPE = late_pattern(r"\\{1,16}u([0-9A-Fa-f]{4})")
# `name=value`, in a query, a form, a cookie or a list of variables.
_PAIR = late_pattern(
    rf"(?<!{_NAME})(?P<name>{_NAME}+)=(?P<value>(?!{HIDDEN})(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s&#\"']+))"
)
# `Name: value`, as a header is written. Only what looks made by a machine is taken for one, since
# sentences have colons too; a path is not.
_HEADER = late_pattern(
    rf"(?<!{_NAME})(?P<name>{_NAME}+):[ \t]{{0,4}}"
    r"(?P<value>(?![/.])[A-Za-z0-9._~+/=-]{8,}(?=$|[\s\"',;&)])|\"[^\"\n]{1,999}\"|'[^'\n]{1,999}')"
)
# The same after the word of an unknown scheme.
_SCHEMED = late_pattern(
    r"(?i)(?P<name>\b(?:proxy-)?authorization:[ \t]{0,4}[a-z][a-z0-9-]{0,40}[ \t]{1,8})"
    r"(?=[^\s\"']{0,999}\d)[^\s\"']{6,}"
)
# A cookie is all of its line.
_COOKIE = late_pattern(r"(?im)(?P<name>\b(?:set-)?cookie:[ \t]{0,4})[^\r\n]+")
_USER = late_pattern(r"(?<=://)[^/?#\s@\"']*@")
_SCHEME = late_pattern(
    r"(?i)\b(?P<scheme>bearer|basic|digest)(?P<gap>\s{1,8})[A-Za-z0-9._~+/=-]{6,}"
)
# What keys of ours and of others begin with.
_SHAPE = late_pattern(
    r"\b(?:(?P<ours>whsec_|dgm_|nxk_|eyJ)[A-Za-z0-9._~+/=-]{6,}"
    r"|(?P<other>sk-|rk-|gh[pousr]_|github_pat_|xox[abprs]-|glpat-|AKIA)[A-Za-z0-9_-]{16,})"
)
_PEM = late_pattern(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL)
# One of these is in every text that has a secret; most ids and words have none.
_MARK = late_pattern(r"[:=@ _\t\n]|eyJ|AKIA|xox|glpat-|[sr]k-")
# Headers whose values identify no caller.
# fmt: off
_OPEN_HEADERS = frozenset({
    "a2a-version", "a2a-extensions", "accept", "accept-encoding", "accept-ranges", "age", "allow",
    "alt-svc", "cache-control", "connection", "content-disposition", "content-encoding",
    "content-language", "content-length", "content-range", "content-security-policy",
    "content-type", "date", "etag", "expires", "host", "if-modified-since", "if-none-match",
    "keep-alive", "last-event-id", "last-modified", "location", "pragma", "referrer-policy",
    "retry-after", "server", "server-timing", "strict-transport-security", "traceparent",
    "tracestate", "transfer-encoding", "user-agent", "vary", "via", "x-a2a-extensions",
    "x-accel-buffering", "x-cache", "x-content-type-options", "x-dragoman-resume",
    "x-frame-options", "x-powered-by", "x-request-id", "x-response-time",
})
_OPEN_PREFIXES = ("access-control-", "ratelimit", "x-ratelimit-")
# fmt: on
# Says whether a member of this name with this value is hidden.
Judge = Callable[[str, Any], bool]


def is_open_header(name: str) -> bool:
    """Say whether the value of a header identifies no caller, so that it may be shown."""
    lower = name.lower()
    return lower in _OPEN_HEADERS or lower.startswith(_OPEN_PREFIXES)


def hidden_text(text: str, hidden: str = HIDDEN) -> str:
    """Return a text without what is named like a secret or looks like one."""
    if _MARK.search(text) is None:
        return text
    if "PRIVATE KEY" in text:
        text = _PEM.sub(hidden, text)
    text = _SCHEME.sub(rf"\g<scheme>\g<gap>{hidden}", text)
    text = _SHAPE.sub(lambda found: (found["ours"] or found["other"]) + hidden, text)
    if "@" in text:
        text = _USER.sub(f"{hidden}@", text)
    if ":" in text:
        text = _COOKIE.sub(rf"\g<name>{hidden}", text)
        text = _SCHEMED.sub(rf"\g<name>{hidden}", text)
        text = hidden_members(text, hidden=hidden)
        text = _HEADER.sub(_without("member", hidden, is_made=True), text)
    return hidden_pairs(text, hidden) if "=" in text else text


def hidden_pairs(text: str, hidden: str = HIDDEN) -> str:
    """Return a text without the values of `name=value` that are secrets."""
    return _PAIR.sub(_without("parameter", hidden), text)


def hidden_members(text: str, is_hidden: Judge = holds_secret, hidden: str = HIDDEN) -> str:
    """Return text that may be JSON, or a piece of it, without the members that are secrets."""
    return _hidden_members(_hidden_containers(text, is_hidden, hidden), is_hidden, hidden, 0)


def _hidden_containers(text: str, is_hidden: Judge, hidden: str) -> str:
    """Return a text without the lists and objects that are secrets by their name."""
    pieces, place = list[str](), 0
    while (found := _OPENED.search(text, place)) is not None:
        name = _ESCAPE.sub(lambda one: chr(int(one[1], 16)), found["name"])
        end = found.end()
        pieces.append(text[place:end])
        if is_hidden(name, []):
            closed = _closed(text, end, found["q"])
            # One that holds nothing is as it was.
            is_empty = closed - end <= 2
            pieces.append(text[end:closed] if is_empty else found["q"] + hidden + found["q"])
            end = closed
        place = end
    return "".join([*pieces, text[place:]]) if pieces else text


def _closed(text: str, place: int, quote: str) -> int:
    """Return where a list or an object ends that begins at a place; the end of the text if it does
    not end."""
    mark = re.escape(quote)
    depth = 0
    for found in re.compile(rf"{mark}.*?(?:(?<!\\){mark}|\Z)|{_BRACKET}", re.DOTALL).finditer(
        text, place
    ):
        if found[0] not in ("[", "{", "]", "}"):
            continue
        depth += 1 if found["open"] else -1
        if not depth:
            return found.end()
    return len(text)


def _hidden_members(text: str, is_hidden: Judge, hidden: str, depth: int) -> str:
    def without(found: re.Match[str]) -> str:
        number, quote = found["number"], found["v"] or found["q"]
        name = _ESCAPE.sub(lambda one: chr(int(one[1], 16)), found["name"])
        begin = f"{found['q']}{found['name']}{found['q']}{found['colon']}{quote}"
        if is_hidden(name, found["value"] if number is None else 0) or depth > _DEEPEST_TEXT:
            return begin + hidden + (quote if number is not None else found["end"])
        if number is not None:
            return found[0]
        # A text may hold JSON of its own.
        return begin + _hidden_members(found["value"], is_hidden, hidden, depth + 1) + found["end"]

    return _MEMBER.sub(without, text) if ":" in text else text


def hidden_value(
    value: Any,
    text: Callable[[str], str] = hidden_text,
    *,
    is_hidden: Judge = holds_secret,
    hidden: str = HIDDEN,
) -> Any:
    """Return JSON without the values of members that are secrets, however deep; `text` cleans every
    other string."""
    return _Cleaner(text, is_hidden, hidden).clean(value, False, 0)


class _Cleaner:
    def __init__(self, text: Callable[[str], str], is_hidden: Judge, hidden: str) -> None:
        self._text = text
        self._is_hidden = is_hidden
        self._hidden = hidden

    def clean(self, value: Any, is_inside: bool, depth: int) -> Any:
        """Return a value; `is_inside`: of a member that is named like a secret."""
        if depth > _DEEPEST:
            return self._hidden
        if isinstance(value, dict):
            members = cast("Mapping[str, Any]", value)
            is_pair = not is_inside and self._is_pair(members)
            return {
                name: self._member(
                    name, one, is_inside or (is_pair and name.lower() in _VALUES), depth
                )
                for name, one in members.items()
            }
        if isinstance(value, list):
            return [self.clean(one, is_inside, depth + 1) for one in cast("list[Any]", value)]
        if is_inside and not isinstance(value, bool | None):
            return self._hidden
        return self._text(value) if isinstance(value, str) else value

    def _is_pair(self, members: Mapping[str, Any]) -> bool:
        """Tell whether one member says that another is a secret."""
        return any(
            isinstance(one, str) and name.lower() in _LABELS and self._is_hidden(one, "")
            for name, one in members.items()
        )

    def _member(self, name: str, value: Any, is_inside: bool, depth: int) -> Any:
        if words(name) in _LABELLED and isinstance(value, dict | list):
            return self._labelled(value, depth + 1)
        # Inside of what is named like a secret only what is about it is shown: a scheme, an
        # address.
        hides = self._is_hidden(name, value) or (is_inside and not is_about(name))
        return self.clean(value, hides, depth + 1)

    def _labelled(self, value: Any, depth: int) -> Any:
        """Return what has names of its own choice for members: ways to be known, and scopes."""
        if depth > _DEEPEST:
            return self._hidden
        if isinstance(value, list):
            return [self._labelled(one, depth + 1) for one in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return self.clean(value, False, depth)
        members = cast("Mapping[str, Any]", value)
        return {
            name: self.clean(one, False, depth + 1)
            if isinstance(one, dict | list)
            else self._member(name, one, False, depth)
            for name, one in members.items()
        }


def _without(place: Place, hidden: str, *, is_made: bool = False) -> Callable[[re.Match[str]], str]:
    """Return what takes the value out of a pair, if its name is that of a secret; `is_made`: only a
    value with a digit in it."""

    def without(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if is_made and not any(one.isdigit() for one in value):
            return found[0]
        plain = unquote_plus(name) if "%" in name else name
        if not holds_secret(plain, 0 if value.isdigit() else value, place):
            return found[0]
        return found[0][: found.start("value") - found.start()] + hidden

    return without
