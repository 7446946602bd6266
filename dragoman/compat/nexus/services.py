"""What a gateway has, a service each. Results are the API's own objects, out of their envelope;
members of what is sent may be written as Python does, `price_per_task` for `pricePerTask`."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple
from urllib.parse import quote

from dragoman.compat.nexus.line import Line, decoded, failed

Json = dict[str, Any]


class TaskEvent(NamedTuple):
    """One event of a task: `status` (the whole task), `message`, `artifact` or `complete`. A stream
    goes on after an `id`."""

    kind: str
    data: Any
    id: str = ""


class Service:
    """One part of the API."""

    def __init__(self, line: Line) -> None:
        self._line = line


class Agents(Service):
    """The registry."""

    async def register(self, endpoint: str, **more: Any) -> Json:
        """Register an agent: `name`, `skills`, `tags`, `price_per_task` and so on besides."""
        return await self._line.ask("POST", "/agents", _body(endpoint=endpoint, **more))

    async def list(self, **query: Any) -> Json:
        """Return a page: one's own agents, and those of others that are online."""
        return await self._line.ask("GET", "/agents", query=_body(**query))

    async def discover(self, **query: Any) -> Json:
        """Find agents by `skill_tags`, `category`, `min_trust_score`, `status`, `text` and so on,
        the most trusted first."""
        return await self._line.ask("GET", "/discover", query=_body(**query))

    async def get(self, agent_id: str) -> Json:
        """Return an agent."""
        return await self._line.ask("GET", _path("agents", agent_id))

    async def update(self, agent_id: str, **changes: Any) -> Json:
        """Change an agent of one's own."""
        return await self._line.ask("PATCH", _path("agents", agent_id), _body(**changes))

    async def remove(self, agent_id: str) -> None:
        """Remove an agent of one's own."""
        await self._line.ask("DELETE", _path("agents", agent_id))

    async def heartbeat(self, agent_id: str, **more: Any) -> Json:
        """Say that an agent of one's own is there."""
        return await self._line.ask("POST", _path("agents", agent_id, "heartbeat"), _body(**more))

    async def create_api_key(self, agent_id: str, name: str, **more: Any) -> Json:
        """Make a key for an agent of one's own; its text is in this answer alone."""
        path = _path("agents", agent_id, "api-keys")
        return await self._line.ask("POST", path, _body(name=name, **more))

    async def list_api_keys(self, agent_id: str) -> Any:
        """Return the keys of an agent of one's own, without their texts."""
        return await self._line.ask("GET", _path("agents", agent_id, "api-keys"))

    async def revoke_api_key(self, agent_id: str, key_id: str) -> None:
        """End a key at once."""
        await self._line.ask("DELETE", _path("agents", agent_id, "api-keys", key_id))


class Tasks(Service):
    """Tasks that agents are given."""

    async def create(
        self, assigned_agent_id: str, title: str, *, idempotency_key: str = "", **more: Any
    ) -> Json:
        """Give an agent a task, with `input`, `timeout_seconds` and so on besides. It is answered
        before anything is forwarded, and is the same task however often it is sent."""
        body = _body(assigned_agent_id=assigned_agent_id, title=title, **more)
        return await self._line.ask("POST", "/tasks", body, key=idempotency_key)

    async def get(self, task_id: str) -> Json:
        """Return a task."""
        return await self._line.ask("GET", _path("tasks", task_id))

    async def list(self, **query: Any) -> Json:
        """Return a page of one's own tasks, newest first: by `status`, `assigned_agent_id`."""
        return await self._line.ask("GET", "/tasks", query=_body(**query))

    async def cancel(self, task_id: str) -> Json:
        """End a task; its agent is told."""
        return await self._line.ask("POST", _path("tasks", task_id, "cancel"))

    async def reply(
        self, task_id: str, message: str, *, idempotency_key: str = "", **more: Any
    ) -> Json:
        """Say something more to a task that is under way."""
        body = _body(message=message, **more)
        path = _path("tasks", task_id, "reply")
        return await self._line.ask("POST", path, body, key=idempotency_key)

    async def stream(self, task_id: str, *, after: str = "") -> AsyncGenerator[TaskEvent]:
        """Yield what happens to a task until its end, through every cut."""
        path = _path("tasks", task_id, "stream")
        async with aclosing(self._line.events(path, after)) as events:
            async for sent in events:
                data = decoded(sent.data)
                if sent.kind == "error":
                    raise failed(data)
                yield TaskEvent(sent.kind, data, sent.id or "")
                if sent.kind == "complete":
                    return


class Trust(Service):
    """How agents stand."""

    async def get(self, agent_id: str) -> Json:
        """Return how an agent stands, and why."""
        return await self._line.ask("GET", _path("trust", agent_id))

    async def history(self, agent_id: str, **query: Any) -> Json:
        """Return a page of what was observed of an agent, the latest first."""
        return await self._line.ask(
            "GET", _path("trust", agent_id, "history"), query=_body(**query)
        )

    async def rate(self, agent_id: str, task_id: str, rating: int, comment: str = "") -> Json:
        """Rate a completed task of one's own from 1 to 5, once."""
        body = _body(task_id=task_id, rating=rating, comment=comment)
        return await self._line.ask("POST", _path("trust", agent_id, "rate"), body)

    async def dispute(self, agent_id: str, task_id: str, reason: str) -> Json:
        """Say that a task of one's own was not done."""
        body = _body(task_id=task_id, reason=reason)
        return await self._line.ask("POST", _path("trust", agent_id, "dispute"), body)


class Billing(Service):
    """One's credits."""

    async def balance(self) -> Json:
        """Return what one has."""
        return await self._line.ask("GET", "/billing/balance")

    async def transactions(self, **query: Any) -> Json:
        """Return a page of one's statement, the latest line first."""
        return await self._line.ask("GET", "/billing/transactions", query=_body(**query))

    async def usage(self, **query: Any) -> Any:
        """Return what was spent and earned, day by day."""
        return await self._line.ask("GET", "/billing/usage", query=_body(**query))

    async def packages(self) -> Any:
        """Return what is on offer."""
        return await self._line.ask("GET", "/billing/packages")

    async def checkout(self, package: str) -> Json:
        """Begin a purchase; pay at the address in the answer."""
        return await self._line.ask("POST", "/billing/checkout", {"package": package})


class Workflows(Service):
    """Several tasks that depend on each other."""

    async def create(self, **definition: Any) -> Json:
        """Define a workflow."""
        return await self._line.ask("POST", "/workflows", _body(**definition))

    async def list(self, **query: Any) -> Json:
        """Return a page of one's own workflows, newest first."""
        return await self._line.ask("GET", "/workflows", query=_body(**query))

    async def get(self, workflow_id: str) -> Json:
        """Return a workflow and its last runs."""
        return await self._line.ask("GET", _path("workflows", workflow_id))

    async def execute(self, workflow_id: str, *, idempotency_key: str = "", **more: Any) -> Json:
        """Begin a run; answered before its first step is."""
        path = _path("workflows", workflow_id, "execute")
        return await self._line.ask("POST", path, _body(**more), key=idempotency_key)

    async def run(self, workflow_id: str, run_id: str) -> Json:
        """Return how a run stands."""
        return await self._line.ask("GET", _path("workflows", workflow_id, "runs", run_id))

    async def cancel_run(self, workflow_id: str, run_id: str) -> Json:
        """End a run and what is under way for it."""
        path = _path("workflows", workflow_id, "runs", run_id, "cancel")
        return await self._line.ask("POST", path)


def _path(*steps: str) -> str:
    return "/" + "/".join(quote(step, safe="") for step in steps)


def _body(**members: Any) -> Mapping[str, Any]:
    """Return members under the names that the API has for them."""
    return {_camel(name): value for name, value in members.items()}


def _camel(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(word.capitalize() for word in more)
