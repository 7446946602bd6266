"""What a person reads of a request, and what they type as its answer."""

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from dragoman.cli.failures import usage
from dragoman.cli.invocation import is_terminal

if TYPE_CHECKING:
    # Heavy: loaded when there is a request.
    from collections.abc import Callable

    from dragoman.cli.calling.form_prompt import FieldQuestion
    from dragoman.model.message import Part
    from dragoman.model.requests import Request

_YES = ("yes", "y", "true")
_NO = ("no", "n", "false")


def described(request: "Request") -> list[str]:
    """Return how a request is answered, line by line, after its prompt."""
    import msgspec

    lines = [request.problem] if request.problem else []
    if request.kind == "choice":
        lines += [f"{number}) {choice}" for number, choice in enumerate(request.choices, 1)]
    elif request.kind == "confirmation":
        lines.append("yes or no")
    elif request.kind == "form":
        lines += ["a form, field by field, or JSON with these members:", *_members(request.schema)]
    elif request.kind == "tool":
        args = msgspec.json.encode(request.args).decode()
        lines.append(f"the result of {request.name}({args}), as JSON or text")
    elif request.handoff is not None:
        kind = request.handoff.auth_type
        if url := request.handoff.authorization_url:
            lines.append(f"sign in at {url}")
            kind = "code that you get there"
        lines.append(f"the {kind}, which is sent so that only the agent can read it")
    return lines


def _members(schema: Any) -> list[str]:
    """Return the fields of a form, a line each."""
    from dragoman.authoring.form_fields import Field, fields

    def lines(field: Field) -> list[str]:
        if field.fields and field.kind == "object":
            return [line for one in field.fields for line in lines(one)]
        name = field.key.removeprefix("value").lstrip("/") or "the whole"
        kind = field.kind
        if field.choices:
            kind += f" ({', '.join(choice.label for choice in field.choices)})"
        return [f"{name}: {kind}{'' if field.required else ', may be left out'}"]

    return lines(fields(schema))


def value_of(request: "Request", text: str) -> Any:
    """Return what a typed text means; raises a usage failure for what cannot be an answer."""
    import msgspec

    answer = text.strip()
    if request.kind == "choice" and answer not in request.choices:
        if not (
            answer.isascii() and answer.isdecimal() and 1 <= int(answer[:6]) <= len(request.choices)
        ):
            raise usage(f"that is not one of the choices: {', '.join(request.choices)}")
        return request.choices[int(answer[:6]) - 1]
    if request.kind == "confirmation":
        if answer.casefold() not in (*_YES, *_NO):
            raise usage("that is neither yes nor no")
        return answer.casefold() in _YES
    if request.kind in ("form", "tool"):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(answer)
        if request.kind == "form":
            # Not what was typed: it may be a secret.
            raise usage("that is not JSON")
    return answer if request.kind == "choice" else text


def parts_of(request: "Request", text: str) -> "list[Part]":
    """Return the message that a typed text answers with; raises a usage failure for what cannot be
    an answer."""
    return parts_with(request, value_of(request, text))


def parts_with(request: "Request", value: Any) -> "list[Part]":
    """Return the message that a value answers with; raises a usage failure for one that cannot be
    handed over."""
    from dragoman.client.requests import answer_parts
    from dragoman.errors import ConfigError

    try:
        return answer_parts(request, value)
    except (ValueError, ConfigError) as error:
        raise usage(str(error)) from None


def typed_form(request: "Request", note: "Callable[[str, str], None]") -> Any:
    """Return the form that a person fills in on a terminal, field by field."""
    from dragoman.cli.calling.form_prompt import FormDialogue

    form = FormDialogue(request.schema)
    while form.question is not None:
        show_field(form.question, note)
        form.take(typed(request))
    return form.value


def show_field(question: "FieldQuestion", note: "Callable[[str, str], None]") -> None:
    """Show what a field of a form wants, and what was wrong with the last answer."""
    if question.problem:
        note("Error", question.problem)
    for line in question.lines:
        note("Field", line)


def typed(request: "Request") -> str:
    """Return what a person types, unseen if it is sensitive; without a terminal, a line of
    stdin."""
    if not is_terminal(sys.stdin):
        line = sys.stdin.readline()
        if not line:
            raise usage("an answer is needed: as an argument, or a line on stdin")
        return line.rstrip("\n")
    try:
        if request.sensitive:
            import getpass

            return getpass.getpass("> ")
        return input("> ")
    except EOFError:
        raise usage("nothing was answered") from None
