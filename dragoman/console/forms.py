"""Questions of tasks as forms, and what was submitted as answers.

The rules of a form are those of `authoring/form_fields.py`, which the terminal uses too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.authoring import form_fields
from dragoman.authoring.form_fields import Field
from dragoman.console.api import ApiFailed
from dragoman.console.visit import Visit


class AnswerForm(msgspec.Struct):
    """A question, and the fields that answer it."""

    item: dict[str, Any]
    field: Field | None
    problem: str = ""

    @property
    def can_answer(self) -> bool:
        """Whether a person can answer it here: a credential is encrypted by its owner."""
        return self.item["kind"] != "credential"


class GivenAnswer(msgspec.Struct):
    """What became of an answer."""

    id: str = ""
    problem: str = ""
    field: Field | None = None

    def redrawn(self, forms: Sequence[AnswerForm]) -> list[AnswerForm]:
        """Return the forms with what was given and what is wrong with it."""
        return [
            AnswerForm(one.item, self.field or one.field, self.problem)
            if one.item["id"] == self.id
            else one
            for one in forms
        ]


def answer_forms(requests: Sequence[dict[str, Any]]) -> list[AnswerForm]:
    """Return the forms for what a task waits for."""
    return [AnswerForm(item, form_fields.fields(_schema(item))) for item in requests]


def _schema(item: dict[str, Any]) -> Any:
    match item["kind"]:
        case "form" | "tool" if item.get("schema"):
            return item["schema"]
        case "tool":
            return {}
        case "choice":
            return {"enum": item.get("choices") or [], "title": "Answer"}
        case "confirmation":
            choices = [{"const": True, "title": "Yes"}, {"const": False, "title": "No"}]
            return {"oneOf": choices, "title": "Answer"}
        case _:
            return {"type": "string", "title": "Answer"}


async def read_answer(visit: Visit) -> GivenAnswer:
    """Take what was submitted for a question, and send it; its problem says why it was not."""
    form: Mapping[str, Sequence[str]] = visit.form or {}
    # Several forms may stand on a page; a button says which one was meant.
    id = visit.field("request") or visit.field("refuse")
    own = {
        f"{form_fields.ROOT}{name[len(id) + 1 :]}": values
        for name, values in form.items()
        if name == f"{id}:" or name.startswith(f"{id}:/")
    }
    item = await visit.api.get(f"/inbox/{id}")
    if visit.field("refuse"):
        why = visit.field(f"{id}:why").strip() or "refused"
        return await _send(visit, {"id": id, "decline": why})
    submission = form_fields.read(_schema(item), own)
    if submission.errors:
        return GivenAnswer(id, "Look at the fields below.", submission.form)
    given = await _send(visit, {"id": id, "value": submission.value})
    given.field = submission.form
    return given


async def _send(visit: Visit, answer: dict[str, Any]) -> GivenAnswer:
    try:
        await visit.api.post("/inbox", answer)
    except ApiFailed as error:
        if error.status in (400, 404, 409):
            return GivenAnswer(answer["id"], error.message)
        raise
    return GivenAnswer(answer["id"])
