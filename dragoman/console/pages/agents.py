"""Agents: those that are registered with the gateway, or those that this process serves."""

from typing import Any, cast
from urllib.parse import quote

from dragoman.console import markup
from dragoman.console.api import ApiFailed
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link
from dragoman.dialects.cards import CARD_PATH
from dragoman.model.card import SCHEMAS_URI

_V1 = (b"a2a-version", b"1.0")
_PAGE = 50


async def show(visit: Visit) -> Answer:
    """Draw the list."""
    text = visit.query.get("text", "").strip()
    context: dict[str, Any] = {"text": text, "origin": visit.origin, "next": ""}
    if visit.me.get("hasRegistry"):
        after = visit.query.get("after", "")
        found = await visit.api.gateway("GET", "/agents", text=text, limit=_PAGE, after=after)
        if following := found.get("next"):
            context["next"] = link("/agents", text=text, after=following)
        context["agents"] = [registered(one) for one in found["agents"]]
    else:
        context["agents"] = [
            served(name, await card_of(visit, name)) for name in visit.me["agents"]
        ]
    return DrawnPage("agents.html", "Agents", context, live=["agents"], every=10.0)


async def card_of(visit: Visit, name: str, below: str = "agents") -> dict[str, Any]:
    """Return the card that this process shows of an agent; raises `ApiFailed`."""
    answer = await visit.api.send("GET", f"/{below}/{name}{CARD_PATH}", headers=[_V1])
    if answer.status != 200 or not answer.object:
        raise ApiFailed(404, "There is no such agent here.")
    return answer.object


def served(name: str, card: dict[str, Any]) -> dict[str, Any]:
    """Return an agent of this process as it is drawn."""
    return {
        "slug": name,
        "name": card.get("name", name),
        "description": card.get("description", ""),
        "status": "online",
        "card": card,
        "skills": with_schemas(card.get("skills", []), card),
        "spoken": spoken(card),
        "price": None,
        "trust": None,
        "seen": "",
        "endpoint": "",
        "is_paused": False,
        "record": None,
    }


def registered(record: dict[str, Any]) -> dict[str, Any]:
    """Return an agent of the registry as it is drawn."""
    card: dict[str, Any] = record.get("agent_card") or {}
    return {
        "slug": record["slug"],
        "name": record["name"],
        "description": record["description"],
        "status": record["status"],
        "card": card,
        "skills": with_schemas(record["skills"], card),
        "spoken": spoken(card),
        "price": record["price_per_task"],
        "trust": record["trust_score"],
        "seen": record.get("last_seen_at") or "",
        "endpoint": record["endpoint"],
        "is_paused": record["is_paused"],
        "record": record,
    }


def with_schemas(skills: list[dict[str, Any]], card: dict[str, Any]) -> list[dict[str, Any]]:
    """Return skills with the schemas of their arguments that the card has beside them, unless they
    have their own."""
    found: dict[str, Any] = {}
    extensions: Any = _object(card.get("capabilities")).get("extensions")
    for one in cast("list[Any]", extensions) if isinstance(extensions, list) else []:
        if (extension := _object(one)).get("uri") == SCHEMAS_URI:
            found |= _object(_object(extension.get("params")).get("schemas"))
    return [
        {**skill, "inputSchema": found[skill["id"]]}
        if skill.get("id") in found and "inputSchema" not in skill
        else skill
        for skill in skills
    ]


def _object(value: Any) -> dict[str, Any]:
    """Return a member of a stranger's card that should be an object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def spoken(card: dict[str, Any]) -> list[str]:
    """Return the versions and bindings that a card names."""
    found: list[str] = []
    named: Any = card.get("supportedInterfaces")
    for one in cast("list[Any]", named) if isinstance(named, list) else []:
        if isinstance(one, dict):
            place = cast("dict[str, Any]", one)
            words = (place.get("protocolBinding", ""), place.get("protocolVersion", ""))
            found.append(" ".join(map(str, words)).strip())
    if not found and card.get("protocolVersion"):
        found = [f"{card.get('preferredTransport', 'JSONRPC')} {card['protocolVersion']}"]
    return list(dict.fromkeys(found))


async def register(visit: Visit) -> Answer:
    """Register an agent by its address, or show what that would come to."""
    endpoint = visit.field("endpoint").strip()
    body = {"endpoint": endpoint}
    try:
        if visit.field("preview"):
            found = await visit.api.gateway("POST", "/agent-previews", body)
            return await _redrawn(visit, endpoint, preview=await _preview(visit, found))
        made = await visit.api.gateway("POST", "/agents", body)
    except ApiFailed as error:
        return await _redrawn(visit, endpoint, 422, problem=error.message)
    return Redirect(f"/agents/{quote(made['slug'])}", "Registered.")


async def _redrawn(visit: Visit, endpoint: str, status: int = 200, **more: Any) -> DrawnPage:
    drawn = await show(visit)
    assert isinstance(drawn, DrawnPage), "the list is drawn"
    drawn.context |= {"endpoint": endpoint, **more}
    drawn.status = status
    return drawn


async def _preview(visit: Visit, found: dict[str, Any]) -> dict[str, Any]:
    """Return an agent as it would be, and how its card differs from that of one's agent there."""
    agent = registered(found["agent"])
    preview: dict[str, Any] = {"agent": agent, "is_taken": found["is_name_taken"], "known": None}
    if found["same_address"]:
        name = found["same_address"][0]
        known = await visit.api.gateway("GET", f"/agents/{quote(name, safe='')}")
        preview["known"] = name
        preview["difference"] = markup.difference(known.get("agent_card"), agent["card"])
    return preview
