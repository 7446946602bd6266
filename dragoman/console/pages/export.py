"""A task as one file: HTML to read anywhere, JSON for programs, a cassette for tests."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from dragoman.console import assets, content
from dragoman.console.api import ApiFailed
from dragoman.console.pages.task import LONG, told_events, view_of
from dragoman.console.rendering import render
from dragoman.console.visit import Answer, Download, Visit
from dragoman.dialects.cards import CARD_PATH
from dragoman.dialects.v1_0 import V1_0
from dragoman.model import operations as ops
from dragoman.model.record import decode_message
from dragoman.testing.cassettes import cassette
from dragoman.testing.cassettes.redaction import CassetteRedaction
from dragoman.transports import rest, sse

# Events in one file, and how many are asked for at once.
_MOST_EVENTS = 20_000
_WINDOW = 500
_JSON = "application/json"


async def _whole(visit: Visit) -> dict[str, Any]:
    """Return what is known of a task, with as many events as fit into memory."""
    path = f"/tasks/{quote(visit.params['id'], safe='')}"
    view = await view_of(visit)
    state = await visit.api.get(f"{path}/state")
    events = await _events(visit, path)
    return {
        "exportedAt": datetime.now(UTC).isoformat(),
        "summary": view,
        "task": state["task"],
        "position": state["position"],
        "events": events,
        "isCut": bool(events) and events[-1]["position"] < view["events"],
    }


async def _events(visit: Visit, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < _MOST_EVENTS:
        after = found[-1]["position"] if found else 0
        page = await visit.api.get(f"{path}/events", after=after, limit=_WINDOW)
        if not page["items"]:
            break
        found += page["items"]
    return found


async def as_json(visit: Visit) -> Answer:
    """Give one JSON file with all events, however many: they are sent as they are read, and what
    they come to is the last member."""
    path = f"/tasks/{quote(visit.params['id'], safe='')}"
    view = await view_of(visit)
    head: dict[str, Any] = {"exportedAt": datetime.now(UTC).isoformat(), "summary": view}
    head["position"] = view["events"]
    name = f"task-{visit.params['id']}.json"
    return Download(name, "application/json", pieces=_json_pieces(visit, path, head))


async def _json_pieces(visit: Visit, path: str, head: dict[str, Any]) -> AsyncGenerator[bytes]:
    yield msgspec.json.encode(head).removesuffix(b"}") + b',"events":[\n'
    after, last, folded = 0, head["position"], content.FoldedTask()
    while after < last:
        page = await visit.api.get(f"{path}/events", after=after, limit=_WINDOW)
        items = [item for item in page["items"] if item["position"] <= last]
        if not items:
            break
        yield (b",\n" if after else b"") + b",\n".join(map(msgspec.json.encode, items))
        after = items[-1]["position"]
        for item in items:
            folded.add(item["event"])
    yield b'\n],"task":' + msgspec.json.encode(folded.task()) + b"}\n"


async def _shortened_task(visit: Visit) -> dict[str, Any]:
    """Return what people read of a task: of a long one its first and its last events."""
    view = await view_of(visit)
    if view["events"] <= LONG:
        return await _whole(visit)
    events = await told_events(visit, view["events"])
    return {
        "exportedAt": datetime.now(UTC).isoformat(),
        "summary": view,
        "task": content.from_events(events),
        "position": view["events"],
        "events": events,
        "isCut": True,
    }


async def as_html(visit: Visit) -> Answer:
    """Give one HTML file that needs nothing else: neither scripts nor this server."""
    whole = await _shortened_task(visit)
    style = assets.assets()["console.css"].plain.decode()
    context = {
        **whole,
        "style": style,
        "said": content.conversation(whole["task"]),
        "origin": visit.origin,
    }
    body = render("export.html", context).encode()
    return Download(f"task-{visit.params['id']}.html", "text/html; charset=utf-8", body)


async def as_cassette(visit: Visit) -> Answer:
    """Give what `dragoman replay` plays: the message, and the stream that answered it."""
    whole = await _whole(visit)
    agent = whole["summary"]["agent"]
    answer = await visit.api.send("GET", f"/agents/{agent}{CARD_PATH}")
    card = answer.object
    if not card:
        raise ApiFailed(404, "Its agent has no card here.")
    redaction = CassetteRedaction(card=card)
    head = cassette.CassetteHead(
        cassette=cassette.FORMAT,
        recorded_at=whole["exportedAt"],
        card=redaction.value(_at_base(card)),
        interfaces=[cassette.Interface("/i0", "HTTP+JSON", "1.0")],
    )
    lines = [head, *_exchanges(whole, redaction)]
    body = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    return Download(f"task-{visit.params['id']}.cassette", "application/jsonl", body)


def _at_base(card: dict[str, Any]) -> dict[str, Any]:
    """Return a card with one interface: that of the cassette."""
    place = {"url": f"{cassette.BASE}/i0", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
    return {**card, "supportedInterfaces": [place]}


def _exchanges(
    whole: dict[str, Any], redaction: CassetteRedaction
) -> list[cassette.RecordedExchange]:
    """Return the send that began the task, answered by the task and by the events of its stream."""
    first = content.first_message(whole["task"])
    shown = {name: value for name, value in first.items() if name not in ("taskId", "contextId")}
    message = decode_message(msgspec.json.encode(shown))
    task = cassette.Content(json=redaction.value({"task": whole["task"]}))
    events = [item["event"] for item in whole["events"] if item["isPublic"]]
    blocks = [
        cassette.Block(0.0, sse.frame(msgspec.json.encode(redaction.value(event))).decode())
        for event in events
    ]
    plain = cassette.RecordedAnswer(200, {"content-type": _JSON}, task)
    stream = cassette.RecordedAnswer(200, {"content-type": "text/event-stream"}, blocks=blocks)
    return [
        cassette.RecordedExchange(number, _request(operation, redaction), answer)
        for number, (operation, answer) in enumerate(
            [
                (ops.SendMessage(message=message), plain),
                (ops.StreamMessage(message=message), stream),
            ],
            1,
        )
    ]


def _request(operation: ops.SendMessage, redaction: CassetteRedaction) -> cassette.RecordedRequest:
    """Return the request as our own client makes it."""
    asked = rest.request(V1_0, operation)
    return cassette.RecordedRequest(
        asked.verb,
        f"/i0{asked.path}",
        headers={"content-type": _JSON, "a2a-version": V1_0.version},
        body=cassette.Content(json=redaction.value(asked.body)),
    )
