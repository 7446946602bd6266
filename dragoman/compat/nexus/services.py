"""The parts of a gateway's API, a service each. Results are the API's objects without envelope;
arguments may be written in Python's style, `price_per_task` for `pricePerTask`."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple
from urllib.parse import quote

from dragoman.compat.nexus.connection import NexusConnection, decoded, failed
from dragoman.dialects.reading import camel

Json = dict[str, Any]


class TaskEvent(NamedTuple):
    """One event of a task: `status` (the whole task), `message`, `artifact` or `complete`. A stream
    goes on after an `id`."""

    kind: str
    data: Any
    id: str = ""


class NexusService:
    """One part of the API."""

    def __init__(self, connection: NexusConnection) -> None:
        self._connection = connection


class NexusAgents(NexusService):
    """The registry."""

    async def register(self, endpoint: str, **more: Any) -> Json:
        """Register an agent: `name`, `skills`, `tags`, `price_per_task` and so on besides."""
        return await self._connection.request("POST", "/agents", _body(endpoint=endpoint, **more))

    async def list(self, **query: Any) -> Json:
        """Return a page of the caller's agents, and of other agents that are online."""
        return await self._connection.request("GET", "/agents", query=_body(**query))

    async def discover(self, **query: Any) -> Json:
        """Find agents by `skill_tags`, `category`, `min_trust_score`, `status`, `text` and so on,
        the most trusted first."""
        return await self._connection.request("GET", "/discover", query=_body(**query))

    async def get(self, agent_id: str) -> Json:
        """Return an agent."""
        return await self._connection.request("GET", _path("agents", agent_id))

    async def update(self, agent_id: str, **changes: Any) -> Json:
        """Change an agent of the caller."""
        return await self._connection.request("PATCH", _path("agents", agent_id), _body(**changes))

    async def remove(self, agent_id: str) -> None:
        """Remove an agent of the caller."""
        await self._connection.request("DELETE", _path("agents", agent_id))

    async def heartbeat(self, agent_id: str, **more: Any) -> Json:
        """Report that an agent of the caller is online."""
        return await self._connection.request(
            "POST", _path("agents", agent_id, "heartbeat"), _body(**more)
        )

    async def create_api_key(self, agent_id: str, name: str, **more: Any) -> Json:
        """Make a key for an agent of the caller; its text is in this answer only."""
        path = _path("agents", agent_id, "api-keys")
        return await self._connection.request("POST", path, _body(name=name, **more))

    async def list_api_keys(self, agent_id: str) -> Any:
        """Return the keys of an agent of the caller, without their texts."""
        return await self._connection.request("GET", _path("agents", agent_id, "api-keys"))

    async def revoke_api_key(self, agent_id: str, key_id: str) -> None:
        """Revoke a key at once."""
        await self._connection.request("DELETE", _path("agents", agent_id, "api-keys", key_id))


class NexusTasks(NexusService):
    """Tasks that agents are given."""

    async def create(
        self, assigned_agent_id: str, title: str, *, idempotency_key: str = "", **more: Any
    ) -> Json:
        """Give an agent a task, with `input`, `timeout_seconds` and so on. The answer comes before
        anything is forwarded; a repeated request returns the same task."""
        body = _body(assigned_agent_id=assigned_agent_id, title=title, **more)
        return await self._connection.request("POST", "/tasks", body, key=idempotency_key)

    async def get(self, task_id: str) -> Json:
        """Return a task."""
        return await self._connection.request("GET", _path("tasks", task_id))

    async def list(self, **query: Any) -> Json:
        """Return a page of the caller's tasks, newest first: by `status`, `assigned_agent_id`."""
        return await self._connection.request("GET", "/tasks", query=_body(**query))

    async def cancel(self, task_id: str) -> Json:
        """Cancel a task, also at its agent."""
        return await self._connection.request("POST", _path("tasks", task_id, "cancel"))

    async def reply(
        self, task_id: str, message: str, *, idempotency_key: str = "", **more: Any
    ) -> Json:
        """Send a further message to a running task."""
        body = _body(message=message, **more)
        path = _path("tasks", task_id, "reply")
        return await self._connection.request("POST", path, body, key=idempotency_key)

    async def stream(self, task_id: str, *, after: str = "") -> AsyncGenerator[TaskEvent]:
        """Yield the events of a task until its end, across lost connections."""
        path = _path("tasks", task_id, "stream")
        async with aclosing(self._connection.events(path, after)) as events:
            async for sent in events:
                data = decoded(sent.data)
                if sent.kind == "error":
                    raise failed(data)
                yield TaskEvent(sent.kind, data, sent.id or "")
                if sent.kind == "complete":
                    return


class NexusTrust(NexusService):
    """The reputation of agents."""

    async def get(self, agent_id: str) -> Json:
        """Return the reputation of an agent, and why."""
        return await self._connection.request("GET", _path("trust", agent_id))

    async def history(self, agent_id: str, **query: Any) -> Json:
        """Return a page of the observations of an agent, latest first."""
        return await self._connection.request(
            "GET", _path("trust", agent_id, "history"), query=_body(**query)
        )

    async def rate(self, agent_id: str, task_id: str, rating: int, comment: str = "") -> Json:
        """Rate a completed task of the caller from 1 to 5, once."""
        body = _body(task_id=task_id, rating=rating, comment=comment)
        return await self._connection.request("POST", _path("trust", agent_id, "rate"), body)

    async def dispute(self, agent_id: str, task_id: str, reason: str) -> Json:
        """Dispute a task of the caller."""
        body = _body(task_id=task_id, reason=reason)
        return await self._connection.request("POST", _path("trust", agent_id, "dispute"), body)


class Billing(NexusService):
    """The caller's credits."""

    async def balance(self) -> Json:
        """Return the balance."""
        return await self._connection.request("GET", "/billing/balance")

    async def transactions(self, **query: Any) -> Json:
        """Return a page of the caller's statement, the latest line first."""
        return await self._connection.request("GET", "/billing/transactions", query=_body(**query))

    async def usage(self, **query: Any) -> Any:
        """Return spending and earnings by day."""
        return await self._connection.request("GET", "/billing/usage", query=_body(**query))

    async def packages(self) -> Any:
        """Return the packages on offer."""
        return await self._connection.request("GET", "/billing/packages")

    async def checkout(self, package: str) -> Json:
        """Begin a purchase; pay at the address in the answer."""
        return await self._connection.request("POST", "/billing/checkout", {"package": package})


class NexusWorkflows(NexusService):
    """Workflows: tasks that depend on each other."""

    async def create(self, **definition: Any) -> Json:
        """Define a workflow."""
        return await self._connection.request("POST", "/workflows", _body(**definition))

    async def list(self, **query: Any) -> Json:
        """Return a page of the caller's workflows, newest first."""
        return await self._connection.request("GET", "/workflows", query=_body(**query))

    async def get(self, workflow_id: str) -> Json:
        """Return a workflow and its last runs."""
        return await self._connection.request("GET", _path("workflows", workflow_id))

    async def execute(self, workflow_id: str, *, idempotency_key: str = "", **more: Any) -> Json:
        """Begin a run; the answer does not wait for its first step."""
        path = _path("workflows", workflow_id, "execute")
        return await self._connection.request("POST", path, _body(**more), key=idempotency_key)

    async def run(self, workflow_id: str, run_id: str) -> Json:
        """Return a run."""
        return await self._connection.request(
            "GET", _path("workflows", workflow_id, "runs", run_id)
        )

    async def cancel_run(self, workflow_id: str, run_id: str) -> Json:
        """Cancel a run and its tasks."""
        path = _path("workflows", workflow_id, "runs", run_id, "cancel")
        return await self._connection.request("POST", path)


def _path(*steps: str) -> str:
    return "/" + "/".join(quote(step, safe="") for step in steps)


def _body(**members: Any) -> Mapping[str, Any]:
    """Return members with the API's names."""
    return {camel(name): value for name, value in members.items()}
