"""A JSON Schema as fields that a person fills in, and what they gave as JSON.

The console draws the fields, `dragoman chat` and `dragoman inbox` ask for them one by one; the
rules are these for all. A schema may come from a foreign agent, and so anything may be in it: what
is too deep, too long or no form at all becomes one field that takes JSON. What is given is checked
as the agent will check it (`authoring/forms.py`), except for patterns that could take long.
"""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast

import msgspec

from dragoman.authoring.forms import Schema, Unfit, check

Kind = Literal[
    "text",
    "number",
    "integer",
    "boolean",
    "choice",
    "several",
    "date",
    "time",
    "datetime",
    "object",
    "list",
    "json",
]
# The key of the whole form; that of a field is followed by its JSON Pointer.
ROOT = "value"
# What is drawn; anything beyond is one field that takes JSON.
_DEEPEST = 8
_MOST_FIELDS = 200
_MOST_CHOICES = 500
_MOST_ROWS = 100
_LONGEST_LABEL = 200
_LONGEST_HELP = 2000
_LONGEST_PATTERN = 200
# Steps that a search may take at most.
_SEARCH_STEPS = 10_000_000
_NUMBER = re.compile(r"[+-]?[0-9]{1,300}(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?[0-9]{1,300}", re.ASCII)
_REPEATS = re.compile(r"(?<!\\)[*+{]")
_BACKTRACKS = re.compile(r"\)[*+?{]|\\[1-9]|\(\?P=")
_TRUE = frozenset({"true", "on", "yes", "y", "1"})
_FALSE = frozenset({"false", "off", "no", "n", "0"})
_FORMATS: Mapping[str, Kind] = {"date": "date", "time": "time", "date-time": "datetime"}
# What a schema that is not one raises when it is used.
_BROKEN = (TypeError, KeyError, AttributeError, ValueError, RecursionError)

Submitted = Mapping[str, Sequence[str]]


class FieldChoice(NamedTuple):
    """One of what may be chosen."""

    # As it is submitted, as it is shown, and what it means.
    text: str
    label: str
    value: Any


class Field(msgspec.Struct, kw_only=True):
    """One field; of an object or a list, with the fields inside."""

    key: str
    kind: Kind
    label: str
    help: str = ""
    required: bool = False
    # As it is shown: what was given, or the default. Of `several`, a text for each choice.
    texts: list[str] = []
    error: str = ""
    choices: list[FieldChoice] = []
    # The members of an object; the rows of a list and a further, empty one.
    fields: list["Field"] = []
    # For the client that draws it: bounds of a number, a length or a count of rows.
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""

    @property
    def text(self) -> str:
        """The only text of a field that has one."""
        return self.texts[0] if self.texts else ""

    @property
    def is_checked(self) -> bool:
        """Whether a yes or no is a yes."""
        return self.text.casefold() in _TRUE


class Submission(NamedTuple):
    """What was given: its meaning, or by key why it has none."""

    value: Any
    errors: Mapping[str, str]
    # The form as it was given, with the errors.
    form: Field


class _Absent(Exception):
    """Nothing was given."""


def fields(schema: Any, value: Any = msgspec.UNSET) -> Field:
    """Return a form, filled in with a value or else with its defaults."""
    return _Form(schema).drawn(value)


def read(schema: Any, submitted: Submitted) -> Submission:
    """Return what was given for a form, by the keys of its fields."""
    form = _Form(schema)
    field = form.submitted(submitted)
    errors: dict[str, str] = {}
    value = form.value_of(field, errors)
    if not errors and value is not msgspec.UNSET and (problem := form.problem(value)):
        field.error = errors[field.key] = problem
    if value is msgspec.UNSET and not errors:
        field.error = errors[field.key] = "is required"
    return Submission(None if errors else value, errors, field)


class _Form:
    """A schema on its way to be fields."""

    def __init__(self, schema: Any) -> None:
        self._root: Schema = _object(schema)
        self._left = _MOST_FIELDS
        # The schema of each field, by its key.
        self._schemas: dict[str, Schema] = {}

    @cached_property
    def _checked(self) -> Schema:
        """What values are held against; made once for all fields, because it can be large."""
        return _without_patterns(self._root)

    def drawn(self, value: Any) -> Field:
        """Return the fields with a value."""
        return self._field(self._root, ROOT, "", value, None, required=True, depth=0)

    def submitted(self, given: Submitted) -> Field:
        """Return the fields with what was given."""
        return self._field(self._root, ROOT, "", msgspec.UNSET, given, required=True, depth=0)

    def problem(self, value: Any) -> str:
        """Say why a value does not fit the whole schema; empty: it does."""
        return _problem(value, self._checked, self._checked)

    def _field(
        self,
        schema: Schema,
        key: str,
        name: str,
        value: Any,
        given: Submitted | None,
        *,
        required: bool,
        depth: int,
    ) -> Field:
        self._left -= 1
        # What a schema elsewhere is called is the name of a type, not of this field.
        title = _text(schema.get("title"), _LONGEST_LABEL) or name
        schema = self._plain(schema)
        kind = self._kind(schema) if depth <= _DEEPEST and self._left >= 0 else "json"
        self._schemas[key] = schema
        if value is msgspec.UNSET and given is None:
            value = schema.get("default", msgspec.UNSET)
        field = Field(
            key=key,
            kind=kind,
            label=title or _text(schema.get("title"), _LONGEST_LABEL),
            help=_text(schema.get("description"), _LONGEST_HELP),
            required=required,
            pattern=_text(schema.get("pattern"), _LONGEST_PATTERN),
        )
        field.minimum, field.maximum = _bounds(schema, kind)
        if kind in ("object", "list"):
            for inner, at, title, own, is_needed in self._inside(field, schema, value, given):
                member = self._field(
                    inner, at, title, own, given, required=is_needed, depth=depth + 1
                )
                field.fields.append(member)
            return field
        source = _object(schema.get("items")) if kind == "several" else schema
        field.choices = self._choices(source) if kind in ("choice", "several") else []
        if given is not None:
            field.texts = [str(text) for text in given.get(key, ())]
        elif value is not msgspec.UNSET:
            field.texts = _texts(field, value)
        return field

    def _inside(
        self, field: Field, schema: Schema, value: Any, given: Submitted | None
    ) -> Iterator[tuple[Schema, str, str, Any, bool]]:
        """Yield the fields inside an object or a list: schema, key, name, value, and whether it is
        required."""
        key = field.key
        if field.kind == "object":
            needed, whole = _list(schema.get("required")), _object(value)
            for member, inner in _object(schema.get("properties")).items():
                own = whole.get(member, msgspec.UNSET)
                yield _object(inner), f"{key}/{_escaped(member)}", member, own, member in needed
            return
        rows = _rows(key, given) if given is not None else range(len(_list(value)))
        shown = [*rows, max(rows, default=-1) + 1][: _MOST_ROWS + 1]
        values = dict(zip(rows, _list(value), strict=False))
        items = _object(schema.get("items"))
        for index in shown:
            name = f"{field.label} {index + 1}".strip()
            yield items, f"{key}/{index}", name, values.get(index, msgspec.UNSET), False

    # From fields to a value

    def value_of(self, field: Field, errors: dict[str, str]) -> Any:
        """Return what a field means; `UNSET`: nothing was given."""
        try:
            value = self._value(field, errors)
        except _Absent:
            if field.required:
                field.error = errors[field.key] = "is required"
            return msgspec.UNSET
        except Unfit as error:
            field.error = errors[field.key] = str(error)
            return msgspec.UNSET
        return value

    def _value(self, field: Field, errors: dict[str, str]) -> Any:
        if field.kind == "object":
            return self._members(field, errors)
        if field.kind == "list":
            rows = [row for row in field.fields if not _is_blank(row)]
            found = [self.value_of(row, errors) for row in rows]
            if not found and not field.required:
                raise _Absent
            self._check(field, found, without="items")
            return found
        value = _VALUES[field.kind](field)
        self._check(field, value)
        return value

    def _members(self, field: Field, errors: dict[str, str]) -> Any:
        if not field.required and _is_blank(field):
            # Nothing of it was given: what it requires is required of one that is there.
            raise _Absent
        found = {
            _name(member.key): value
            for member in field.fields
            if (value := self.value_of(member, errors)) is not msgspec.UNSET
        }
        return found

    def _check(self, field: Field, value: Any, without: str = "") -> None:
        schema = {name: rule for name, rule in self._schemas[field.key].items() if name != without}
        if problem := _problem(value, _without_patterns(schema), self._checked):
            raise Unfit(problem)
        if isinstance(value, str) and not _matches(field.pattern, value):
            raise Unfit(f"must look like {field.pattern}")

    # What a schema says

    def _plain(self, schema: Schema) -> Schema:
        """Return a schema without references, and without the null that makes a value optional."""
        for _ in range(_DEEPEST):
            if isinstance(place := schema.get("$ref"), str):
                rest = {name: rule for name, rule in schema.items() if name != "$ref"}
                schema = {**self._at(place), **rest}
                continue
            parts = _list(schema.get("allOf"))
            if len(parts) == 1:
                rest = {name: rule for name, rule in schema.items() if name != "allOf"}
                schema = {**_object(parts[0]), **rest}
                continue
            for name in ("anyOf", "oneOf"):
                kinds = [_object(one) for one in _list(schema.get(name))]
                left = [one for one in kinds if one.get("type") != "null"]
                if len(kinds) == 2 and len(left) == 1:
                    rest = {other: rule for other, rule in schema.items() if other != name}
                    schema = {**left[0], **rest}
                    break
            else:
                return schema
        return schema

    def _at(self, place: str) -> Schema:
        found: Any = self._root
        if not place.startswith("#/"):
            return {}
        for step in place[2:].split("/"):
            found = _object(found).get(step.replace("~1", "/").replace("~0", "~"))
        return _object(found)

    def _kind(self, schema: Schema) -> Kind:
        if 0 < len(self._choices(schema)) <= _MOST_CHOICES:
            return "choice"
        kinds = schema.get("type")
        named = [kind for kind in (_list(kinds) or [kinds]) if kind != "null"]
        match named[0] if len(named) == 1 else None:
            case "string":
                return _FORMATS.get(_text(schema.get("format"), 20), "text")
            case "number" | "integer" | "boolean" as kind:
                return kind
            case "array":
                return self._list_kind(schema)
            case _:
                members = _object(schema.get("properties"))
                return "object" if 0 < len(members) <= self._left else "json"

    def _list_kind(self, schema: Schema) -> Kind:
        items = _object(schema.get("items"))
        if not items:
            return "json"
        return "several" if 0 < len(self._choices(items)) <= _MOST_CHOICES else "list"

    def _choices(self, schema: Schema) -> list[FieldChoice]:
        schema = self._plain(schema)
        values = [(one, "") for one in _list(schema.get("enum"))]
        if "const" in schema:
            values = [(schema["const"], "")]
        for name in ("anyOf", "oneOf"):
            kinds = [_object(one) for one in _list(schema.get(name))]
            if kinds and all("const" in one for one in kinds):
                values = [(one["const"], _text(one.get("title"), _LONGEST_LABEL)) for one in kinds]
        found = [(_shown(value), label, value) for value, label in values]
        return [FieldChoice(text, label or text, value) for text, label, value in found]


def _problem(value: Any, schema: Schema, root: Schema) -> str:
    try:
        check(value, schema, root)
    except Unfit as error:
        return str(error).removeprefix("$ ").removeprefix("$.")
    except _BROKEN:
        # The schema is not one: what fits it, its agent knows.
        return ""
    return ""


def _without_patterns(schema: Any, depth: int = 0) -> Any:
    """Return a schema without patterns: a foreign one could be searched for without end."""
    if depth > 4 * _DEEPEST:
        return {}
    if isinstance(schema, list):
        return [_without_patterns(one, depth + 1) for one in cast("list[Any]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    members = cast(Schema, schema)
    return {
        name: _without_patterns(rule, depth + 1)
        for name, rule in members.items()
        if name != "pattern" or isinstance(rule, Mapping)
    }


def _matches(pattern: str, text: str) -> bool:
    """Tell whether a text has a pattern in it. One that could take long is left to the agent."""
    if not pattern or _BACKTRACKS.search(pattern):
        return True
    if len(text) ** (len(_REPEATS.findall(pattern)) + 1) > _SEARCH_STEPS:
        return True
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return True


# Texts to values


def _only(field: Field) -> str:
    text = field.text.strip() if field.kind not in ("text", "choice") else field.text
    if not text:
        raise _Absent
    return text


def _whole(field: Field) -> int:
    text = _only(field)
    if _WHOLE.fullmatch(text) is None:
        raise Unfit("must be a whole number")
    return int(text)


def _number(field: Field) -> float:
    text = _only(field)
    if _NUMBER.fullmatch(text) is None:
        raise Unfit("must be a number")
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise Unfit("is too large")
    return int(text) if _WHOLE.fullmatch(text) else value


def _boolean(field: Field) -> bool:
    # A box that is not checked is not submitted at all.
    if not field.texts:
        return False
    text = _only(field).casefold()
    if text not in _TRUE | _FALSE:
        raise Unfit("must be yes or no")
    return text in _TRUE


def _chosen(field: Field) -> Any:
    text = _only(field)
    for choice in field.choices:
        if choice.text == text:
            return choice.value
    raise Unfit("is not one of the choices")


def _several(field: Field) -> list[Any]:
    by_text = {choice.text: choice.value for choice in field.choices}
    texts = [text for text in field.texts if text]
    if not texts and not field.required:
        raise _Absent
    if any(text not in by_text for text in texts):
        raise Unfit("is not one of the choices")
    return [by_text[text] for text in dict.fromkeys(texts)]


def _date(field: Field) -> str:
    text = _only(field)
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise Unfit("must be a date, as 2026-01-31") from None


def _time(field: Field) -> str:
    text = _only(field)
    try:
        return datetime.time.fromisoformat(text).isoformat()
    except ValueError:
        raise Unfit("must be a time, as 09:30") from None


def _instant(field: Field) -> str:
    text = _only(field)
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise Unfit("must be a date and a time, as 2026-01-31T09:30") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    return found.isoformat().replace("+00:00", "Z")


def _json(field: Field) -> Any:
    text = _only(field)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise Unfit("is not JSON") from None


_VALUES: Mapping[Kind, Any] = {
    "text": _only,
    "number": _number,
    "integer": _whole,
    "boolean": _boolean,
    "choice": _chosen,
    "several": _several,
    "date": _date,
    "time": _time,
    "datetime": _instant,
    "json": _json,
}


def _texts(field: Field, value: Any) -> list[str]:
    """Return how a value is shown in a field."""
    match field.kind:
        case "several":
            return [_shown(one) for one in _list(value)]
        case "json":
            return [msgspec.json.format(msgspec.json.encode(value)).decode()]
        case "boolean":
            return ["true" if value is True else "false"]
        case _:
            return [] if value is None else [_shown(value)]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _is_blank(field: Field) -> bool:
    """Tell whether nothing was given for a field and those inside it."""
    if field.fields:
        return all(_is_blank(one) for one in field.fields)
    if field.kind == "boolean":
        return not field.is_checked
    return not any(text.strip() for text in field.texts)


def _rows(key: str, given: Submitted) -> list[int]:
    """Return which rows of a list were submitted."""
    found: set[int] = set()
    start = f"{key}/"
    for name in given:
        index = name[len(start) :].partition("/")[0] if name.startswith(start) else ""
        if index.isascii() and index.isdecimal() and len(index) < 5:
            found.add(int(index))
    return sorted(found)[:_MOST_ROWS]


def _bounds(schema: Schema, kind: Kind) -> tuple[float | None, float | None]:
    names = {"text": "Length", "list": "Items", "several": "Items"}.get(kind)
    if names is not None:
        return _limit(schema.get(f"min{names}")), _limit(schema.get(f"max{names}"))
    return _limit(schema.get("minimum")), _limit(schema.get("maximum"))


def _limit(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _name(key: str) -> str:
    return key.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def _object(value: Any) -> Schema:
    return cast(Schema, value) if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _text(value: Any, most: int) -> str:
    return value[:most] if isinstance(value, str) else ""
