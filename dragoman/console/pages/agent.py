"""One agent: its card as people read it, its skills to try, why it is trusted, and what changed."""

import shlex
from typing import Any, cast
from urllib.parse import quote

import msgspec

from dragoman.authoring import form_fields
from dragoman.console import content, markup
from dragoman.console.api import ApiFailed
from dragoman.console.dialect_views import VIEWS, DialectView, GrpcView, shown_event, views_of
from dragoman.console.pages import agents
from dragoman.console.pages.tasks import rows
from dragoman.console.visit import Answer, DrawnPage, Redirect, Visit, link
from dragoman.dialects import card_check
from dragoman.model import operations as ops
from dragoman.model.identity import MessageId, new_id
from dragoman.model.message import Message, Part, Role
from dragoman.security.json_values import MAX_VALUES
from dragoman.transports import rest

# Tasks that are shown, the latest.
_TASKS = 8
_MOST_FINDINGS = 20
_LIVE = ("agent_head", "agent_rollouts", "agent_tasks", "try_stream", "try_hops")
# Events of the stream of what was sent that are shown, the last.
_STREAMED = 100
# Rollouts of it that are shown, the latest.
_ROLLOUTS = 2


async def _found(visit: Visit) -> dict[str, Any]:
    """Return the agent of the address: of the registry, or of this process."""
    name = visit.params["name"]
    if visit.me.get("hasRegistry"):
        try:
            path = f"/agents/{quote(name, safe='')}"
            return agents.registered(await visit.api.gateway("GET", path))
        except ApiFailed as error:
            if error.status != 404:
                raise
    return agents.served(name, await agents.card_of(visit, name))


async def _context(visit: Visit) -> dict[str, Any]:
    agent = await _found(visit)
    record = agent["record"]
    trust = None
    if record is not None:
        try:
            trust = await visit.api.gateway("GET", f"/trust/{record['id']}")
        except ApiFailed:
            trust = None
    pending = record and record.get("pending_card")
    latest = await _latest(visit, record)
    return {
        "agent": agent,
        "at": f"/agents/{quote(agent['slug'], safe='')}",
        "can_act": record is not None and (record["is_mine"] or visit.is_operator),
        "trust": trust,
        "findings": [str(one) for one in card_check.findings(agent["card"])[:_MOST_FINDINGS]]
        if agent["card"]
        else [],
        "earned": await _earned(visit, record),
        "rollouts": await _rollouts(visit, record),
        "pending": markup.difference(agent["card"], pending) if pending else "",
        "tasks": await rows(visit, latest),
        "base_url": _address(visit, agent),
        "views": await _views(visit, agent),
        "chosen": visit.field("view") or visit.query.get("view") or "1.0",
        "skill": visit.field("skill") or visit.query.get("skill", ""),
        "words": visit.field("words"),
        "forms": {one["id"]: _form(one) for one in agent["skills"]},
        "exchange": None,
        "stream": None,
    }


async def _views(visit: Visit, agent: dict[str, Any]) -> dict[str, DialectView]:
    """Return the versions and bindings by which it is called here."""
    try:
        below = "agents" if agent["record"] is None else "a2a"
        return views_of(await agents.card_of(visit, quote(agent["slug"], safe=""), below))
    except ApiFailed:
        # It is paused, or away.
        return VIEWS


async def _earned(visit: Visit, record: dict[str, Any] | None) -> float | None:
    """Return what the agents of the visitor earned lately; None: this one is another's."""
    if record is None or not record["is_mine"]:
        return None
    return (await visit.api.gateway("GET", "/billing/usage", period="30d"))["total_earned"]


async def _rollouts(visit: Visit, record: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the latest rollouts of an agent, for those who may know of them."""
    if record is None:
        return []
    try:
        asked = {"agentId": record["id"], "limit": _ROLLOUTS}
        return (await visit.api.gateway("GET", "/rollouts", **asked))["rollouts"]
    except ApiFailed:
        return []


async def _latest(visit: Visit, record: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return its latest tasks: those that it has here, or those that the gateway gave to it."""
    whose = {"agent": visit.params["name"]} if record is None else {"to": record["id"]}
    return (await visit.api.get("/tasks", **whose, limit=_TASKS))["items"]


def _form(skill: dict[str, Any]) -> form_fields.Field | None:
    schema = skill.get("inputSchema")
    return form_fields.fields(schema) if schema else None


def _address(visit: Visit, agent: dict[str, Any]) -> str:
    return visit.origin + _path(agent)


def _path(agent: dict[str, Any]) -> str:
    where = "agents" if agent["record"] is None else "a2a"
    return f"/{where}/{quote(agent['slug'], safe='')}"


async def show(visit: Visit) -> Answer:
    """Draw the agent and, if a task was sent from here, its stream."""
    context = await _context(visit)
    if task := visit.query.get("task", ""):
        try:
            context["stream"] = await _stream(visit, context, task)
        except ApiFailed as error:
            # It was forgotten, or is not the visitor's.
            if error.status != 404:
                raise
    return DrawnPage("agent.html", context["agent"]["name"], context, live=_LIVE, every=5.0)


async def send(visit: Visit) -> Answer:
    """Send a message as the chosen version and binding do, and show the exchange."""
    context = await _context(visit)
    view = _chosen(context)
    message, problem = _message(visit, context)
    if message is None:
        context["problem"] = problem
        return DrawnPage("agent.html", context["agent"]["name"], context, status=422)
    exchange = context["exchange"] = await _exchange(visit, context, view, message)
    live_at = ""
    if task := exchange["task"]:
        context["stream"] = await _stream(visit, context, task)
        live_at = link(context["at"], task=task, view=context["chosen"])
    return DrawnPage(
        "agent.html", context["agent"]["name"], context, live=_LIVE, every=5.0, live_at=live_at
    )


def _chosen(context: dict[str, Any]) -> DialectView:
    return context["views"].get(context["chosen"], VIEWS["1.0"])


async def _stream(visit: Visit, context: dict[str, Any], task_id: str) -> dict[str, Any]:
    """Return what the sender of a task gets of it, as it comes."""
    view = _chosen(context)
    path = f"/tasks/{quote(task_id, safe='')}"
    found = await visit.api.get(path)
    task = {**found["task"], "isEnded": found["isEnded"]}
    before = task["events"] + 1
    events = (await visit.api.get(f"{path}/events", before=before, limit=_STREAMED))["items"]
    shown = [shown_event(one, view) for one in events]
    return {
        **task,
        "calls": await _calls(visit, path) if context["can_act"] else None,
        "view": view.name,
        "curl": visit.command(view.curl(visit.origin, task)),
        "earlier": bool(events) and events[0]["position"] > 1,
        "streamed": [
            one | {"line": content.line_of(one["event"]), "state": content.state_in(one["event"])}
            for one in shown
            if one["shown"] is not None
        ],
    }


async def _calls(visit: Visit, path: str) -> dict[str, Any] | None:
    """Return what the gateway and the agent said to each other; None: the task is another
    caller's, of which an operator sees the stream alone."""
    try:
        return await visit.api.gateway("GET", f"{path}/hops")
    except ApiFailed as error:
        if error.status != 404:
            raise
        return None


def _message(visit: Visit, context: dict[str, Any]) -> tuple[Message | None, str]:
    skill = visit.field("skill")
    metadata = {"skillId": skill} if skill else {}
    form = context["forms"].get(skill)
    own = {
        f"{form_fields.ROOT}{name[len(skill) + 1 :]}": values
        for name, values in (visit.form or {}).items()
        if name.startswith(f"{skill}:")
    }
    has_fields = any(value for values in own.values() for value in values)
    if form is not None and (has_fields or not visit.field("words")):
        schema = next(
            one["inputSchema"] for one in context["agent"]["skills"] if one["id"] == skill
        )
        given = form_fields.read(schema, own)
        if given.errors:
            context["forms"][skill] = given.form
            return None, "Look at the fields below."
        part = Part(data=given.value)
    elif text := visit.field("data").strip():
        try:
            part = Part(data=msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError):
            return None, "The data is not JSON."
    elif visit.field("words"):
        part = Part(text=visit.field("words"))
    else:
        return None, "Type something to send."
    return Message(MessageId(new_id()), Role.USER, [part], metadata=metadata), ""


async def _exchange(
    visit: Visit, context: dict[str, Any], view: DialectView, message: Message
) -> dict[str, Any]:
    """Send it, and return what went out and what came back."""
    # Have the gateway keep what it says to the agent.
    metadata = {"recordHops": True} if context["can_act"] else {}
    operation = ops.SendMessage(message=message, wait=False, metadata=metadata)
    path, verb = _path(context["agent"]), "POST"
    if isinstance(view, GrpcView):
        return await _call(visit, path, view, operation)
    if view.is_rest:
        asked = rest.request(view.dialect, operation)
        path, verb, body = path + asked.path, asked.verb, asked.body
    else:
        method, params = view.dialect.encode_request(operation)
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    version = view.dialect.version
    answer = await visit.api.send(
        verb, path, body=body, headers=[(b"a2a-version", version.encode())]
    )
    text = msgspec.json.encode(body).decode()
    headers = ["-H", f"A2A-Version: {version}", "-H", "Content-Type: application/json"]
    return {
        "curl": visit.command(shlex.join(["curl", *headers, "-d", text, visit.origin + path])),
        "request": body,
        "status": answer.status,
        "answer": answer.value
        if answer.value is not None
        else answer.body.decode("utf-8", "replace"),
        "task": task_in(answer.object),
    }


async def _call(
    visit: Visit, path: str, view: GrpcView, operation: ops.SendMessage
) -> dict[str, Any]:
    """Send it by an rpc; messages are shown as JSON."""
    # Loads protobuf.
    from dragoman.transports.grpc import statuses
    from dragoman.transports.grpc.codec import codec_of

    operation = msgspec.structs.replace(operation, tenant=view.tenant)
    method, params = view.dialect.encode_request(operation)
    codec = codec_of(view.dialect)
    rpc = codec.encode_request(operation)
    outcome = await visit.api.rpc(path + rpc.path, rpc.request, view.dialect.version)
    reply: dict[str, Any] = {}
    status, said = "OK", ""
    if outcome.error is None:
        reply = codec.reply_values(operation, outcome.message, MAX_VALUES)
    else:
        status, said, _ = statuses.encode(outcome.error, view.dialect.version)
    return {
        "curl": visit.command(view.command(visit.origin, method, params)),
        "request": params,
        "status": status,
        "answer": said or reply,
        "task": task_in(reply),
    }


def task_in(value: dict[str, Any]) -> str:
    """Return the id of the task in an answer of any version; empty: there is none."""
    for name in ("result", "task"):
        inner: Any = value.get(name)
        if isinstance(inner, dict):
            value = cast("dict[str, Any]", inner)
    return str(value.get("id", "")) if "status" in value else ""


# What owners do


async def _act(visit: Visit, verb: str, path: str, body: Any, notice: str) -> Answer:
    name = quote(visit.params["name"], safe="")
    await visit.api.gateway(verb, f"/agents/{name}{path}", body)
    return Redirect(f"/agents/{name}", notice)


async def probe(visit: Visit) -> Answer:
    """Find out whether it answers."""
    return await _act(visit, "POST", "/probe", None, "Probed.")


async def accept(visit: Visit) -> Answer:
    """Accept the card that is held."""
    return await _act(visit, "POST", "/accept", {"digest": visit.field("digest")}, "Accepted.")


async def refuse(visit: Visit) -> Answer:
    """Drop the card that is held."""
    digest = {"digest": visit.field("digest")}
    return await _act(visit, "POST", "/refuse", digest, "Refused: the card before stays in force.")


async def pause(visit: Visit) -> Answer:
    """Have it get no further tasks."""
    paused = {"isPaused": True}
    return await _act(visit, "PATCH", "", paused, "Paused: it gets no further tasks.")


async def resume(visit: Visit) -> Answer:
    """Have it get tasks again."""
    return await _act(visit, "PATCH", "", {"isPaused": False}, "It gets tasks again.")


async def promote(visit: Visit) -> Answer:
    """Put its new version in its place."""
    return await _end_rollout(visit, "promote", "Promoted: the new version is in its place.")


async def roll_back(visit: Visit) -> Answer:
    """Leave it in its place."""
    return await _end_rollout(visit, "rollback", "Rolled back: the old version stays.")


async def change_rollout(visit: Visit) -> Answer:
    """Make the trial of its new version a canary, or a shadow."""
    mode = visit.params["mode"]
    return await _act_on_rollout(
        visit, "PATCH", "", f"It is a {mode} from here on.", {"mode": mode}
    )


async def _end_rollout(visit: Visit, act: str, notice: str) -> Answer:
    return await _act_on_rollout(visit, "POST", f"/{act}", notice)


async def _act_on_rollout(
    visit: Visit, verb: str, act: str, notice: str, body: dict[str, Any] | None = None
) -> Answer:
    id, name = (quote(visit.params[one], safe="") for one in ("rollout", "name"))
    await visit.api.gateway(verb, f"/rollouts/{id}{act}", body)
    return Redirect(f"/agents/{name}", notice)


async def remove(visit: Visit) -> Answer:
    """Take it out of the registry."""
    await visit.api.gateway("DELETE", f"/agents/{quote(visit.params['name'], safe='')}")
    return Redirect("/agents", "Removed.")
