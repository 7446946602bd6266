"""What the routes are asked about: the tasks, agents, keys, workflows and accounts of one caller.

Everything is made by requests, as callers make it. Whatever the owner wrote has a word in it that
is in no answer to another caller.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from dragoman.model.identity import MessageId, new_id
from dragoman.testing.load import HOST
from proof.access.bindings import Channel
from proof.access.callers import BUYER, CALLERS, KEYS, NEIGHBOUR, OTHERS, OWNER, SELLER
from proof.client import ANSWER_WITHIN, ConnectionGone

# In all that the owner writes.
MARK = "confidential-of-ada"
# No receiver listens there: what is posted is not the question.
_RECEIVER = "http://127.0.0.1:9/"
_V1 = {"A2A-Version": "1.0"}
_SUCCESS = range(200, 300)
_LOOK_EVERY = 0.05

# The parts of a thing and their ids; the first is what it is called by.
Thing = Mapping[str, str]


def imagined(thing: Thing) -> Thing:
    """Return a thing of the same shape that never existed."""
    return {part: _other(id) for part, id in thing.items()}


def _other(id: str) -> str:
    """Return an id of the same length and kind."""
    is_ours = len(id) == 36 and id.count("-") == 4
    return new_id() if is_ours else secrets.token_hex(len(id))[: len(id)]


def request(verb: str, path: str, key: str = "", body: str | None = None, **headers: str) -> bytes:
    """Return a request as bytes."""
    lines = [f"{verb} {path} HTTP/1.1", f"Host: {HOST}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"X-API-Key: {key}"] if key else []
    if body is not None:
        lines += [f"Content-Length: {len(body.encode())}"]
        lines += ["Content-Type: application/json"] if body else []
    return ("\r\n".join(lines) + "\r\n\r\n" + (body or "")).encode()


class Things:
    """The things of the owner at one server."""

    # The path at which messages begin tasks.
    _front = "/"

    def __init__(self, wire: Channel) -> None:
        self.wire = wire
        # Keys of callers; and the ids of what belongs to none of them.
        self.keys = dict(KEYS)
        self.fixed: dict[str, str] = {"free": "finished"}
        self._shared: dict[str, Thing] = {}
        self.makers: dict[str, Callable[[], Awaitable[Thing]]] = {
            "task": self._task,
            "working": self._working,
            "waiting": self._waiting,
            "question": self._question,
            "config": self._config,
            "other-task": self._other_task,
            "other-waiting": self._other_waiting,
        }

    async def shared(self, kind: str) -> Thing:
        """Return a thing that no caller may change."""
        if kind not in self._shared:
            self._shared[kind] = await self.fresh(kind)
        return self._shared[kind]

    async def fresh(self, kind: str) -> Thing:
        """Return a thing that was in no request yet."""
        return await self.makers[kind]()

    async def ask(self, caller: str, verb: str, path: str, body: Any = None, **more: str) -> Any:
        """Return what a caller is answered who has to be answered."""
        text = None if body is None else json.dumps(body)
        answer = await self.wire.ask(request(verb, path, self.keys[caller], text, **more))
        if answer.status not in _SUCCESS:
            raise ConnectionGone(f"{verb} {path}: {answer.status} {answer.body[:300].decode()}")
        return json.loads(answer.body) if answer.body else None

    async def looks(self, thing: Thing) -> dict[str, Any]:
        """Return a thing, and what the owner has besides, as its owner sees it."""
        places = self.places(thing)
        found = [await self.wire.ask(request("GET", *place, **_V1)) for place in places]
        return {
            place[0]: [answer.status, _steady(json.loads(answer.body))]
            for place, answer in zip(places, found, strict=True)
        }

    def places(self, thing: Thing) -> list[tuple[str, str]]:
        """Return where that is to be seen, and by whose key."""
        if "task" not in thing:
            return []
        task = f"/tasks/{thing['task']}"
        return [(place, self.keys[OWNER]) for place in (task, f"{task}/pushNotificationConfigs")]

    async def _until(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        """Wait for what comes to be by itself."""
        async with asyncio.timeout(ANSWER_WITHIN):
            while not await is_so():  # noqa: ASYNC110 - of another process there is no event
                await asyncio.sleep(_LOOK_EVERY)

    # Makers

    async def _send(
        self, skill: str, *, caller: str = OWNER, front: str = "", wait: bool = True
    ) -> Any:
        message = {
            "messageId": MessageId(new_id()),
            "role": "ROLE_USER",
            "parts": [{"text": f"{MARK if caller == OWNER else ''} {skill}"}],
            "metadata": {"skillId": skill},
        }
        params = {"message": message, "configuration": {"returnImmediately": not wait}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        found = await self.ask(caller, "POST", front or self._front, call, **_V1)
        if "result" not in found:
            raise ConnectionGone(f"no task was made: {found}")
        return found["result"]["task"]

    async def _task(self) -> Thing:
        return {"task": (await self._send("finished"))["id"]}

    async def _working(self) -> Thing:
        task = (await self._send("working", wait=False))["id"]

        async def works() -> bool:
            found = await self.ask(OWNER, "GET", f"/tasks/{task}", **_V1)
            return found["status"]["state"] == "TASK_STATE_WORKING"

        await self._until(works)
        return {"task": task}

    async def _waiting(self) -> Thing:
        return {"task": (await self._send("waiting"))["id"]}

    async def _question(self) -> Thing:
        task = await self._send("waiting")
        return {"task": task["id"], "request": task["status"]["message"]["messageId"]}

    async def _config(self) -> Thing:
        task = (await self._send("finished"))["id"]
        config = new_id()
        path = self._front.rstrip("/") + f"/tasks/{task}/pushNotificationConfigs"
        body = {"id": config, "taskId": task, "url": f"{_RECEIVER}{MARK}"}
        await self.ask(OWNER, "POST", path, body, **_V1)
        return {"task": task, "config": config}

    async def _other_task(self) -> Thing:
        """Of another tenant."""
        return {"task": (await self._send("finished", caller=SELLER))["id"]}

    async def _other_waiting(self) -> Thing:
        return {"task": (await self._send("waiting", caller=SELLER))["id"]}


class GatewayThings(Things):
    """The things of the owner at a gateway. Agents are all at one address."""

    def __init__(self, wire: Channel, upstream: str) -> None:
        super().__init__(wire)
        self.fixed["upstream"] = upstream
        self.makers |= {
            "agent": self._agent,
            "private": self._private,
            "shared": self._shared_agent,
            "key": self._key,
            "keyed": self._keyed,
            "keyed-run": self._keyed_run,
            "delivered": self._delivered,
            "disputed": self._disputed,
            "earned": self._earned,
            "private-task": self._private_task,
            "account": self._account,
            "checkout": self._checkout,
            "workflow": self._workflow,
            "trigger": self._trigger,
            "rollout": self._rollout,
            "versions": self._versions,
            "run": self._run,
            "hook": self._hook,
        }

    async def open(self) -> None:
        """Register what the owner's things need: agents to buy from, and one that sells."""
        market = await self.register(SELLER, "Market", price=1)
        free = await self.register(SELLER, "Free")
        mine = await self.register(OWNER, "Mine", price=1)
        self.fixed |= {"market": market["id"], "market-slug": market["slug"]}
        self.fixed |= {"free": free["id"], "mine": mine["id"], "mine-slug": mine["slug"]}
        self.fixed["runs"] = "gateway.workflows"
        self._front = f"/a2a/{market['slug']}"
        for column, scopes in (("agent-key", ["*"]), ("read-key", ["tasks:read", "agents:read"])):
            path = f"/api/v1/agents/{mine['id']}/api-keys"
            made = await self._api(OWNER, "POST", path, {"name": column, "scopes": scopes})
            self.keys[column] = made["key"]
        # Servers look at their file of keys once a second.
        await self._until(self._knows_keys)

    async def _knows_keys(self) -> bool:
        asked = request("GET", "/api/v1/agents", self.keys["read-key"])
        return (await self.wire.ask(asked)).status != 401

    async def _api(self, caller: str, verb: str, path: str, body: Any = None) -> Any:
        return (await self.ask(caller, verb, path, body))["data"]

    async def register(self, caller: str, name: str, *, price: int = 0, **more: Any) -> Any:
        """Register the one agent once more, for a caller; return its record."""
        text = MARK if caller == OWNER and "callers" in more else name
        body = {"endpoint": self.fixed["upstream"], "name": name, "pricePerTask": price}
        return await self._api(
            caller, "POST", "/api/v1/agents", {**body, "description": text, **more}
        )

    def places(self, thing: Thing) -> list[tuple[str, str]]:
        """Return where a thing and what belongs to it is to be seen, and by whose key."""
        found = ["billing/balance", "billing/transactions?limit=100", "workflows?limit=1"]
        found += ["tasks?limit=1", f"trust/{self.fixed['mine']}/history?limit=100"]
        if agent := thing.get("agent"):
            found += [f"agents/{agent}", f"agents/{agent}/api-keys", f"trust/{agent}/history"]
        if workflow := thing.get("workflow"):
            found += [f"workflows/{workflow}"]
        if trigger := thing.get("trigger"):
            found += [f"triggers/{trigger}"]
        if rollout := thing.get("rollout"):
            found += [f"rollouts/{rollout}"]
        ours = [(f"/api/v1/{path}", self.keys[OWNER]) for path in found]
        buyers = f"/api/v1/tasks/{thing['task']}" if "task" in thing else "/api/v1/tasks?limit=1"
        return [*super().places(thing), *ours, (buyers, self.keys[BUYER])]

    # Makers

    async def _task(self) -> Thing:
        thing = await self._delivered()
        await self._api(OWNER, "POST", f"/api/v1/tasks/{thing['task']}/accept")
        return thing

    async def _delivered(self) -> Thing:
        return {"task": (await self._send("finished"))["id"]}

    async def _disputed(self) -> Thing:
        thing = await self._delivered()
        body = {"taskId": thing["task"], "reason": MARK}
        await self._api(OWNER, "POST", f"/api/v1/trust/{self.fixed['market']}/dispute", body)
        return thing

    async def _keyed(self) -> Thing:
        """A task that was asked for under a key, by which its repetition is known."""
        key = secrets.token_hex(16)
        body = {"assignedAgentId": self.fixed["free"], "title": "new"}
        headers = {"Idempotency-Key": key}
        task = (await self.ask(OWNER, "POST", "/api/v1/tasks", body, **headers))["data"]["id"]

        async def is_done() -> bool:
            return (await self._api(OWNER, "GET", f"/api/v1/tasks/{task}"))["status"] == "completed"

        await self._until(is_done)
        return {"task": task, "repeat": key}

    async def _keyed_run(self) -> Thing:
        key, found = secrets.token_hex(16), (await self._workflow())["workflow"]
        headers = {"Idempotency-Key": key}
        path = f"/api/v1/workflows/{found}/execute"
        run = (await self.ask(OWNER, "POST", path, **headers))["data"]["id"]
        await self._until_under_way(found, run)
        return {"workflow": found, "run": run, "repeat": key}

    async def _earned(self) -> Thing:
        """What another caller bought of the owner's agent."""
        front = f"/a2a/{self.fixed['mine-slug']}"
        task = (await self._send("finished", caller=BUYER, front=front))["id"]
        await self._api(BUYER, "POST", f"/api/v1/tasks/{task}/accept")
        return {"task": task}

    async def _private_task(self) -> Thing:
        agent = await self._private()
        task = await self._send("finished", front=f"/a2a/{agent['slug']}")
        return {**agent, "task": task["id"]}

    async def _agent(self) -> Thing:
        made = await self.register(OWNER, "Public")
        return {"agent": made["id"], "slug": made["slug"]}

    async def _private(self) -> Thing:
        callers, skill = [OTHERS[SELLER].principal.text], secrets.token_hex(16)
        skills = [{"id": skill, "name": MARK}]
        made = await self.register(OWNER, f"Hidden {MARK}", callers=callers, skills=skills)
        return {"agent": made["id"], "slug": made["slug"], "skill": skill}

    async def _shared_agent(self) -> Thing:
        callers = [CALLERS[NEIGHBOUR].principal.text]
        made = await self.register(OWNER, f"Shared {MARK}", callers=callers)
        return {"agent": made["id"], "slug": made["slug"]}

    async def _key(self) -> Thing:
        agent = (await self._private())["agent"]
        made = await self._api(OWNER, "POST", f"/api/v1/agents/{agent}/api-keys", {"name": MARK})
        return {"agent": agent, "key": made["id"]}

    async def _account(self) -> Thing:
        """What the owner has and spent is told from what a newcomer has."""
        await self.shared("task")
        return {}

    async def _checkout(self) -> Thing:
        made = await self._api(OWNER, "POST", "/api/v1/billing/checkout", {"package": "starter"})
        return {"checkout": made["checkoutId"]}

    async def _trigger(self) -> Thing:
        agent = self.fixed["free"]
        body = {"name": MARK, "agentId": agent, "text": MARK, "webhook": True}
        return {"trigger": (await self._api(OWNER, "POST", "/api/v1/triggers", body))["id"]}

    async def _versions(self) -> Thing:
        """A private agent of the owner's, and its new version."""
        hidden: dict[str, Any] = {"callers": [OTHERS[SELLER].principal.text], "repeatable": True}
        agent = await self.register(OWNER, "Tried", **hidden)
        other = await self.register(OWNER, "Tried Two", **hidden, isPaused=True)
        return {"agent": agent["id"], "candidate": other["id"]}

    async def _rollout(self) -> Thing:
        versions = await self._versions()
        body = {"agentId": versions["agent"], "candidateId": versions["candidate"]}
        made = await self._api(OWNER, "POST", "/api/v1/rollouts", body)
        return {"rollout": made["id"], **versions}

    async def _workflow(self) -> Thing:
        step = {"name": MARK, "agentId": self.fixed["free"], "skillId": "working"}
        body = {"name": MARK, "description": MARK, "steps": [step]}
        return {"workflow": (await self._api(OWNER, "POST", "/api/v1/workflows", body))["id"]}

    async def _run(self) -> Thing:
        found = (await self._workflow())["workflow"]
        run = (await self._api(OWNER, "POST", f"/api/v1/workflows/{found}/execute"))["id"]
        await self._until_under_way(found, run)
        return {"workflow": found, "run": run}

    async def _until_under_way(self, workflow: str, run: str) -> None:
        async def works() -> bool:
            path = f"/api/v1/workflows/{workflow}/runs/{run}"
            step = (await self._api(OWNER, "GET", path))["steps"][0]
            return step.get("status") == "running" and "taskId" in step

        await self._until(works)

    async def _hook(self) -> Thing:
        """The address of a task's posts, which only its agent is told: no caller has it."""
        return {"place": secrets.token_hex(16), "mark": secrets.token_hex(16)}


# What changes without a request.
_UNSTEADY = frozenset(
    {
        *("last_seen_at", "last_heartbeat", "updated_at", "trust_score", "trust_components"),
        *("performance", "retries_left"),
    }
)


# What requesters say.
_WORDS = frozenset({"rating_received", "dispute_opened", "dispute_resolved"})


def _steady(value: Any) -> Any:
    match value:
        case dict():
            found = cast("dict[str, Any]", value)
            if "events" in found:
                # Of trust: outcomes are noted a while after their tasks have ended.
                words = [one for one in found["events"] if one["eventType"] in _WORDS]
                found = {"events": words}
            return {name: _steady(one) for name, one in found.items() if name not in _UNSTEADY}
        case list():
            return [_steady(one) for one in cast("list[Any]", value)]
        case _:
            return value
