"""An agent with skills to wait for, and what its receivers were told."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.commands import invoke
from harness.serving import V1, Site

from dragoman import Agent, Message, Turn
from proof.wire.receivers import Post, Receiver, Treatment

OK, SILENCE = Treatment.OK, Treatment.SILENCE
UNKNOWN = "00000000-0000-7000-8000-000000000000"
NOT_FOUND, INVALID = -32001, -32602
REASONS = {"TASK_NOT_FOUND": NOT_FOUND, "INVALID_PARAMS": INVALID}
# Nobody listens there: what is not posted needs no receiver.
NOWHERE = "http://127.0.0.1:9/hook"
# Opened by a test to let the skill that waits for it go on, by the text it was sent.
Gates = defaultdict[str, asyncio.Event]
BY_NAME = "https://hooks.example.com/hook"
HELD = {"returnImmediately": True}


def make(gates: Gates | None = None) -> Agent:
    agent = Agent("Clerk", "Does as it is told.")

    @agent.skill(default=True)
    async def work(text: str, turn: Turn) -> str:
        await turn.say("At it.")
        return text

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        return f"{text} to {(await turn.ask('Where?')).text}"

    @agent.skill
    async def hold(text: str, turn: Turn) -> str:
        assert gates is not None
        gates[f"{text} begun"].set()
        await gates[text].wait()
        return text

    @agent.skill
    async def reply(text: str, turn: Turn) -> Message:
        return turn.reply(text)

    return agent


def skill(name: str) -> dict[str, Any]:
    return {"metadata": {"skillId": name}}


def wanting(url: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a 1.0 send that names a receiver."""
    return {"taskPushNotificationConfig": {"url": url} | more}


def contents(receiver: Receiver) -> list[Any]:
    return [json.loads(post.body) for post in receiver.posts]


def states(receiver: Receiver) -> list[str]:
    """Return the states that a receiver of any version was told."""
    found: list[str] = []
    for content in contents(receiver):
        holder = content.get("task") or content.get("statusUpdate") or content
        if "status" in holder:
            found.append(holder["status"]["state"].removeprefix("TASK_STATE_").lower())
    return found


async def arrived(receiver: Receiver, count: int) -> list[Post]:
    return await receiver.until(lambda: len(receiver.posts) >= count)


async def ended(receiver: Receiver) -> list[Post]:
    return await receiver.until(lambda: "completed" in states(receiver))


async def run(*arguments: str, exit_code: int = 0) -> str:
    """Run `dragoman push` beside the server; return what it printed."""
    done = await asyncio.to_thread(invoke, "push", *arguments)
    assert done.exit_code == exit_code, done.output
    return done.stdout if not exit_code else done.output


async def listed(file: Path) -> list[dict[str, Any]]:
    said = await run("list", "--store", str(file), "-o", "json")
    return json.loads(said)["items"]


class Refused(Exception):
    """An operation was refused, with this code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code


class Caller:
    """The four operations in one version over one binding, all answers as 1.0 has them."""

    def __init__(self, site: Site, speaks: str) -> None:
        self.site = site
        self.version, _, self.binding = speaks.partition("-")

    async def create(self, task_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
        if self.binding == "rest":
            return await self._rest("POST", task_id, "", dict(config))
        if self.version == "1.0":
            params = {"taskId": task_id, **config}
            return await self._rpc("CreateTaskPushNotificationConfig", params)
        inner = dict(config)
        if "authentication" in inner:
            given = dict(inner["authentication"])
            inner["authentication"] = {"schemes": [given.pop("scheme")], **given}
        params = {"taskId": task_id, "pushNotificationConfig": inner}
        return _flat(await self._rpc("tasks/pushNotificationConfig/set", params))

    async def get(self, task_id: str, id: str) -> dict[str, Any]:
        if self.binding == "rest":
            return await self._rest("GET", task_id, f"/{id}")
        if self.version == "1.0":
            return await self._rpc("GetTaskPushNotificationConfig", {"taskId": task_id, "id": id})
        params = {"id": task_id, "pushNotificationConfigId": id}
        return _flat(await self._rpc("tasks/pushNotificationConfig/get", params))

    async def list(self, task_id: str) -> list[dict[str, Any]]:
        if self.binding == "rest":
            return (await self._rest("GET", task_id, ""))["configs"]
        if self.version == "1.0":
            found = await self._rpc("ListTaskPushNotificationConfigs", {"taskId": task_id})
            return found["configs"]
        found = await self._rpc("tasks/pushNotificationConfig/list", {"id": task_id})
        return [_flat(one) for one in found]

    async def delete(self, task_id: str, id: str) -> None:
        if self.binding == "rest":
            await self._rest("DELETE", task_id, f"/{id}")
        elif self.version == "1.0":
            params = {"taskId": task_id, "id": id}
            await self._rpc("DeleteTaskPushNotificationConfig", params)
        else:
            params = {"id": task_id, "pushNotificationConfigId": id}
            assert await self._rpc("tasks/pushNotificationConfig/delete", params) is None

    async def _rpc(self, method: str, params: Any) -> Any:
        headers = {"A2A-Version": self.version}
        answer = await self.site.answer(method, params, headers=headers)
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["message"])
        return answer["result"]

    async def _rest(self, verb: str, task_id: str, rest: str, body: Any = None) -> Any:
        path = f"/tasks/{task_id}/pushNotificationConfigs{rest}"
        answer = await self.site.http.request(verb, path, json=body, headers=V1)
        if answer.status_code >= 400:
            error = answer.json()["error"]
            raise Refused(REASONS[error["details"][0]["reason"]], error["message"])
        return answer.json() if answer.content else None


def _flat(value: dict[str, Any]) -> dict[str, Any]:
    inner = dict(value["pushNotificationConfig"])
    if "authentication" in inner:
        given = dict(inner["authentication"])
        (scheme,) = given.pop("schemes")
        inner["authentication"] = {"scheme": scheme, **given}
    return {"taskId": value["taskId"], **inner}
