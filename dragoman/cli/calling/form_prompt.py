"""A form on a terminal: its fields one after the other, each checked when it is typed.

The rules are those of the console (`authoring/form_fields.py`). What a person types at the first
field may also be the whole form as JSON.
"""

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import msgspec

from dragoman.authoring.form_fields import Field, Submission, fields, read
from dragoman.cli.failures import usage

_YES = ("yes", "y", "true")
# Nothing typed is no.
_NO = ("no", "n", "false", "")
# Rows that a person may add to a list.
_MOST_ROWS = 100
_HINTS = {
    "number": "a number",
    "integer": "a whole number",
    "boolean": "yes or no",
    "date": "a date, as 2026-01-31",
    "time": "a time, as 09:30",
    "datetime": "a date and a time, as 2026-01-31T09:30",
    "json": "JSON",
}


class FieldQuestion(NamedTuple):
    """What a person is asked next: why the last answer was not taken, and what is wanted."""

    problem: str
    lines: list[str]


_Talk = Generator[FieldQuestion, str, Any]


class FormDialogue:
    """Asks for a form field by field. It takes lines, wherever they come from."""

    def __init__(self, schema: Any) -> None:
        self._talk = _filled(schema)
        self.value: Any = None
        # None: the form is filled in.
        self.question: FieldQuestion | None = next(self._talk)

    def take(self, line: str) -> None:
        """Take an answer; raises a usage failure for a form that cannot be filled in this way."""
        try:
            self.question = self._talk.send(line)
        except StopIteration as end:
            self.question, self.value = None, end.value


def _filled(schema: Any) -> _Talk:
    form = _Filling(schema)
    whole = yield from form.ask(fields(schema), "")
    if whole is not None:
        return whole
    found = form.read()
    if found.errors:
        key, problem = next(iter(found.errors.items()))
        place = key.removeprefix("value").strip("/") or "the form"
        raise usage(f"{place} {problem}")
    return found.value


class _Filling:
    """What was given so far."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._given: dict[str, list[str]] = {}
        self._is_first = True

    def read(self) -> Submission:
        """Return the form as it is so far."""
        return read(self._schema, self._given)

    def ask(self, field: Field, above: str) -> _Talk:
        """Ask for a field and those inside it; return the whole form if it was given as JSON."""
        name = " / ".join(part for part in (above, field.label) if part)
        match field.kind:
            case "object":
                return (yield from self._ask_members(field, name))
            case "list":
                return (yield from self._ask_rows(field, name))
            case _:
                return (yield from self._ask_one(field, name))

    def _ask_members(self, field: Field, name: str) -> _Talk:
        # A part that may be left out is asked for before its members are.
        if not field.required and not (yield from self._wants(f"{name}? yes or no [no]")):
            return None
        for member in field.fields:
            whole = yield from self.ask(member, name)
            if whole is not None:
                return whole
        return None

    def _ask_rows(self, field: Field, name: str) -> _Talk:
        least = int(field.minimum or 0)
        most = min(int(field.maximum if field.maximum is not None else _MOST_ROWS), _MOST_ROWS)
        for count in range(most):
            row = _find(self.read().form, f"{field.key}/{count}")
            assert row is not None, "a list has an empty row at its end"
            if row.kind == "object":
                word = "another" if count else "any"
                asked = f"{name}: {word}? yes or no [{'yes' if count < least else 'no'}]"
                if count >= least and not (yield from self._wants(asked)):
                    return None
                row.required = True
                yield from self._ask_members(row, f"{name} {count + 1}")
                continue
            hint = "" if count < least else " (an empty line ends the list)"
            row.required = count < least
            yield from self._ask_one(row, f"{name} {count + 1}{hint}")
            if not any(self._given.get(row.key, [])):
                return None
        return None

    def _wants(self, asked: str) -> Generator[FieldQuestion, str, bool]:
        self._is_first = False
        problem = ""
        while True:
            line = yield FieldQuestion(problem, [asked])
            answer = line.strip().casefold()
            # What was meant for the first field of the part must not count as a no.
            if answer in (*_YES, *_NO):
                return answer in _YES
            problem = "must be yes or no"

    def _ask_one(self, field: Field, name: str) -> _Talk:
        problem = ""
        while True:
            line = yield FieldQuestion(problem, list(_lines(field, name)))
            is_first, self._is_first = self._is_first, False
            if is_first and field.kind != "json" and line.lstrip().startswith("{"):
                return _json(line)
            # Nothing typed is the default, or nothing.
            self._given[field.key] = _texts(field, line) if line.strip() else field.texts or [""]
            problem = self.read().errors.get(field.key, "")
            if field.required and not line.strip() and not field.texts:
                problem = "is required"
            if not problem:
                return None


def _texts(field: Field, line: str) -> list[str]:
    """Return what was typed as it would be submitted: choices also go by their numbers."""
    if field.kind == "several":
        return [_chosen(field, part.strip()) for part in line.split(",")]
    return [_chosen(field, line.strip())] if field.kind == "choice" else [line]


def _chosen(field: Field, text: str) -> str:
    if any(choice.text == text for choice in field.choices):
        return text
    is_number = text.isascii() and text.isdecimal() and len(text) < 6
    if is_number and 1 <= int(text) <= len(field.choices):
        return field.choices[int(text) - 1].text
    return next((one.text for one in field.choices if one.label == text), text)


def _lines(field: Field, name: str) -> Iterator[str]:
    marks = [] if field.required else ["may be left out"]
    if hint := _HINTS.get(field.kind, ""):
        marks.insert(0, hint)
    if field.kind == "several":
        marks.insert(0, "several, with commas")
    if field.texts:
        marks.append(f"[{', '.join(field.texts)}]")
    yield " - ".join(part for part in (name or "Value", ", ".join(marks)) if part)
    if field.help:
        yield field.help
    for number, choice in enumerate(field.choices, 1):
        yield f"{number}) {choice.label}"


def _find(field: Field, key: str) -> Field | None:
    if field.key == key:
        return field
    found = (_find(one, key) for one in field.fields)
    return next((one for one in found if one is not None), None)


def _json(line: str) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        # Not what was typed: it may be a secret.
        raise usage("that is not JSON") from None
