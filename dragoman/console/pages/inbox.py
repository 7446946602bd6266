"""The inbox: everything that waits for a person, the longest wait first."""

from typing import Any
from urllib.parse import quote

from dragoman.console import markup
from dragoman.console.forms import AnswerForm, answer_forms, read_answer
from dragoman.console.pages.tasks import agent_names
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link


async def show(visit: Visit) -> Answer:
    """Draw one page of what waits."""
    filters = visit.filters("agent", "tenant")
    found = await visit.api.get("/inbox", **filters, pageToken=visit.query.get("page", ""))
    token = found.get("nextPageToken", "")
    context = {
        "items": await _with_agent_names(visit, found["items"]),
        "filters": filters,
        "next": link("/inbox", **filters, page=token) if token else "",
        "origin": visit.origin,
    }
    return DrawnPage("inbox.html", "Inbox", context, live=["inbox"])


async def question(visit: Visit) -> Answer:
    """Draw one question: a page whose address can be sent to the person who knows."""
    return _drawn(answer_forms([await _item(visit)]), 200)


async def _item(visit: Visit) -> dict[str, Any]:
    """Return the question of the address."""
    found = await visit.api.get(f"/inbox/{quote(visit.params['id'], safe='')}")
    return (await _with_agent_names(visit, [found]))[0]


async def _with_agent_names(visit: Visit, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return questions with the names of the agents behind a gateway that ask them."""
    names = await agent_names(visit) if any(one.get("to") for one in items) else {}
    return [{**one, "to": names.get(one.get("to", ""), "")} for one in items]


def _drawn(forms: list[AnswerForm], status: int) -> DrawnPage:
    item = forms[0].item
    context = {"forms": forms, "item": item}
    return DrawnPage(
        "question.html", (markup.line(item["prompt"]) or "A question")[:60], context, status=status
    )


async def answer(visit: Visit) -> Answer:
    """Take an answer."""
    item = await _item(visit)
    given = await read_answer(visit)
    if given.problem:
        return _drawn(given.redrawn(answer_forms([item])), 422)
    return Redirect("/inbox", "Answered.")
