"""A gateway's agents as MCP tools: find an agent, give it a task, read the task, read its trust.

They use the gateway's REST API as one caller: every user of the tools acts with the credential that
this server was started with.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from dragoman.mcp.gateway_api import McpGatewayApi, NotFound
from dragoman.mcp.offers import Document, ReportProgress, ToolOffer, ToolText, bounded

# Seconds.
WAIT, LONGEST_WAIT = 60, 3600
# The shortest time limit of a task, so that one that is not waited for can still be read.
_SHORTEST_TASK = 300
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_LIST = 50
AGENTS = "nexus://agents"
_ENDED = ("completed", "failed", "cancelled")
_WAITS = ("input-required", "auth-required")

_DISCOVER_FIELDS = {
    "text": {"type": "string", "description": "Words that its name or description has."},
    "skill": {"type": "string", "description": "The id of a skill that it has."},
    "skillTags": {"type": "array", "items": {"type": "string"}, "description": "Any of these."},
    "category": {"type": "string", "description": "A tag that it has."},
    "minTrustScore": {"type": "integer", "minimum": 0, "maximum": 100},
    "maxPrice": {"type": "number", "minimum": 0, "description": "Credits per task."},
    "status": {"type": "string", "enum": ["online", "offline", "degraded"]},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
}
_DELEGATE_FIELDS = {
    "agentId": {"type": "string", "description": "The agent's id, or its name in addresses."},
    "message": {"type": "string", "description": "What it is to do, in words."},
    "input": {"type": "object", "description": "The same for agents that take an object."},
    "title": {"type": "string", "maxLength": 200},
    "skillId": {"type": "string"},
    "taskId": {
        "type": "string",
        "description": "A task that waits for an answer: the message is the answer.",
    },
    "maxBudgetCredits": {"type": "number", "minimum": 0},
    "timeoutSeconds": {
        "type": "integer",
        "minimum": 1,
        "maximum": LONGEST_WAIT,
        "description": f"How long to wait ({WAIT}). After that its id is returned.",
    },
}
_TEXT_FIELDS = {"agentId", "message", "timeoutSeconds"}
_LONGEST_TEXT = 10_000
_AGENT = {"agentId": {"type": "string", "description": "The agent's id, or its name."}}
_TASK = {"taskId": {"type": "string", "description": "As delegate_task returned it."}}


class GatewayTools:
    """One gateway."""

    name = "dragoman-gateway"
    about = (
        "Agents behind a gateway. Find one with discover_agents, see with get_agent_trust whether "
        "it does its work, have it do something with delegate_task. A task that takes longer than "
        "you wait goes on: check_task_status says how it stands."
    )
    documents: Sequence[Document] = (
        Document(uri=AGENTS, name="agents", description="The agents, the most trusted first."),
        Document(uri=f"{AGENTS}/{{id}}", name="agent", description="One agent, with its skills."),
    )

    def __init__(self, api: McpGatewayApi) -> None:
        self._api = api

    async def tools(self) -> Sequence[ToolOffer]:
        """Return the four tools."""
        return [
            ToolOffer(
                name="discover_agents",
                title="Discover Agents",
                description="Lists agents that can be given tasks, the most trusted first.",
                schema=_object(_DISCOVER_FIELDS),
                function=self._discover,
                reads_only=True,
            ),
            ToolOffer(
                name="delegate_task",
                title="Delegate Task",
                description="Gives a task to an agent and waits for what comes of it.",
                schema=_object(_DELEGATE_FIELDS),
                function=self._delegate,
            ),
            ToolOffer(
                name="check_task_status",
                title="Check Task Status",
                description="Says how a task stands, and what came of it.",
                schema=_object(_TASK, "taskId"),
                function=self._status,
                reads_only=True,
            ),
            ToolOffer(
                name="get_agent_trust",
                title="Get Agent Trust",
                description="Says how far an agent can be trusted, and why.",
                schema=_object(_AGENT, "agentId"),
                function=self._trust,
                reads_only=True,
            ),
        ]

    async def read(self, uri: str) -> Any:
        """Return the agents, or one of them."""
        if uri == AGENTS:
            found = await self._api.ask("GET", "/v1/discover", query={"limit": _LIST})
            return [_brief(agent) for agent in found["agents"]]
        place, _, name = uri.rpartition("/")
        if place != AGENTS or not name:
            raise LookupError(uri)
        try:
            return await self._api.ask("GET", f"/v1/agents/{quote(unquote(name), safe='')}")
        except NotFound:
            raise LookupError(uri) from None

    async def close(self) -> None:
        """Close the connections to the gateway."""
        await self._api.close()

    async def _discover(self, given: dict[str, Any], report: ReportProgress) -> ToolText:
        query = {name: value for name, value in given.items() if name != "skillTags"}
        if tags := given.get("skillTags"):
            query["skillTags"] = ",".join(tags)
        found = await self._api.ask("GET", "/v1/discover", query=query)
        agents = [_brief(agent) for agent in found["agents"]]
        lines = [f"{one['name']} ({one['id']}): {one['description']}" for one in agents]
        text = "\n".join(lines) or "No agent fits."
        return ToolText(text, {"agents": agents, "total": found["total"]})

    async def _delegate(self, given: dict[str, Any], report: ReportProgress) -> ToolText:
        seconds = bounded(given.get("timeoutSeconds"), WAIT, LONGEST_WAIT)
        ends_at = time.monotonic() + seconds
        answers = given.get("taskId", "")
        waited_as = None
        if answers:
            path = f"/v1/tasks/{quote(answers, safe='')}"
            waited_as = (await self._api.ask("GET", path))["updated_at"]
            task = await self._api.ask(
                "POST", f"{path}/reply", {"message": given.get("message", "")}
            )
        elif given.keys() <= _TEXT_FIELDS and len(given.get("message", "")) <= _LONGEST_TEXT:
            # Here a plain text arrives as text; in the other call, as JSON.
            body = {"agentId": given.get("agentId", ""), "message": given.get("message", "")}
            made = await self._api.ask("POST", "/dashboard/tasks", body)
            task = await self._api.ask("GET", f"/v1/tasks/{quote(made['taskId'], safe='')}")
        else:
            task = await self._api.ask("POST", "/v1/tasks", _new_task(given, seconds))
        pause, shown = _FIRST_PAUSE, ""
        while not _rests(task, waited_as) and time.monotonic() < ends_at:
            if task["a2a_state"] != shown:
                shown = task["a2a_state"]
                await report(f"Task {task['id']} is {shown}")
            await asyncio.sleep(min(pause, max(0.0, ends_at - time.monotonic())))
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            task = await self._api.ask("GET", f"/v1/tasks/{quote(task['id'], safe='')}")
        return _result_of(task)

    async def _status(self, given: dict[str, Any], report: ReportProgress) -> ToolText:
        task = await self._api.ask("GET", f"/v1/tasks/{quote(given['taskId'], safe='')}")
        # The tool did its work although the task failed.
        return msgspec.structs.replace(_result_of(task), is_error=False)

    async def _trust(self, given: dict[str, Any], report: ReportProgress) -> ToolText:
        found = await self._api.ask("GET", f"/v1/trust/{quote(given['agentId'], safe='')}")
        head = f"{found['agentName']}: {found['trustScore']} of 100, {found['badge']}"
        return ToolText("\n".join([head, *found["explanation"]]), found)


def _new_task(given: dict[str, Any], seconds: int) -> dict[str, Any]:
    message, title = given.get("message", ""), given.get("title", "")
    task: dict[str, Any] = {
        "assignedAgentId": given.get("agentId", ""),
        "title": title or " ".join(message.split())[:80] or "Task",
        "input": given.get("input") or {"message": message},
        "timeoutSeconds": max(_SHORTEST_TASK, seconds),
    }
    for name in ("skillId", "maxBudgetCredits"):
        if name in given:
            task[name] = given[name]
    return task


def _rests(task: dict[str, Any], waited_as: str | None) -> bool:
    """Tell whether there is nothing to wait for: the task ended, or asks a new question."""
    if task["status"] in _ENDED:
        return True
    return task["a2a_state"] in _WAITS and task["updated_at"] != waited_as


def _result_of(task: dict[str, Any]) -> ToolText:
    """Return the state of a task, and its result."""
    data = {
        "taskId": task["id"],
        "status": task["status"],
        "state": task["a2a_state"],
        "agentId": task["assigned_agent_id"],
        "output": task["output"],
        "artifacts": task["artifacts"],
        "error": task["error_message"],
    }
    if task["status"] == "completed":
        return ToolText(_result(task) or "The task is completed.", data)
    if task["status"] in _ENDED:
        why = task["error_message"] or f"The task is {task['status']}."
        return ToolText(why, data, is_error=True)
    if task["a2a_state"] in _WAITS:
        question = _last_words(task) or "The agent waits for more."
        hint = f"Answer with delegate_task, taskId {task['id']} and a message."
        return ToolText(f"{question}\n{hint}", data)
    return ToolText(
        f"The task {task['id']} is {task['a2a_state']}; check_task_status says when it ended.", data
    )


def _result(task: dict[str, Any]) -> str:
    parts = [part for artifact in task["artifacts"] for part in artifact["parts"]]
    return "\n".join(_plain(part["data"]) for part in parts) or _last_words(task)


def _last_words(task: dict[str, Any]) -> str:
    replies = [one for one in task["messages"] if one["role"] == "agent"]
    return "\n".join(_plain(part["data"]) for part in replies[-1]["parts"]) if replies else ""


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _brief(agent: dict[str, Any]) -> dict[str, Any]:
    names = ("id", "slug", "name", "description", "tags", "status")
    return {name: agent[name] for name in names} | {
        "trustScore": agent["trust_score"],
        "pricePerTask": agent["price_per_task"],
        "skills": [
            {name: skill.get(name, "") for name in ("id", "name", "description")}
            for skill in agent["skills"]
        ],
    }


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
