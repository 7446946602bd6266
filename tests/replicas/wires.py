"""The same calls in 1.0 and 0.3, as JSON-RPC and as REST."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, NamedTuple

from harness.serving import V1, Frame, Site, frames, message, old_message

PUSH = "pushNotificationConfigs"
V03 = {"A2A-Version": "0.3"}


class Wire(NamedTuple):
    """One version in one binding."""

    is_old: bool
    is_rest: bool

    @property
    def name(self) -> str:
        """What a test is called by."""
        return f"{'0.3' if self.is_old else '1.0'} {'REST' if self.is_rest else 'JSON-RPC'}"

    @property
    def headers(self) -> Mapping[str, str]:
        """The version, as callers name it."""
        return V03 if self.is_old else V1

    async def call(self, site: Site, old: str, new: str, verb: str, path: str, body: Any) -> Any:
        """Make a call of one reply, under the name that this wire has for it."""
        if not self.is_rest:
            return await site.call(old if self.is_old else new, body, headers=self.headers)
        path = f"/v1{path}" if self.is_old else path
        content = body if verb == "POST" else None
        answer = await site.http.request(verb, path, json=content, headers=self.headers)
        assert answer.status_code in (200, 204), answer.text
        return answer.json() if answer.content else None

    def message(self, text: str, skill: str, **more: Any) -> Any:
        """Return a message for a skill."""
        if self.is_old:
            return old_message(text, metadata={"skill": skill}, **more)
        return message(text, metadata={"skill": skill}, **more)

    async def send(self, site: Site, said: Any, *, waits: bool = True) -> Any:
        """Send a message; return its task."""
        waiting = {"blocking": waits} if self.is_old else {"returnImmediately": not waits}
        body = {"message": said, "configuration": waiting}
        found = await self.call(site, "message/send", "SendMessage", "POST", "/message:send", body)
        return found if self.is_old else found["task"]

    async def get(self, site: Site, id: str) -> Any:
        """Return a task."""
        return await self.call(site, "tasks/get", "GetTask", "GET", f"/tasks/{id}", {"id": id})

    async def ids(self, site: Site) -> list[str]:
        """Return the ids of all tasks; 0.3 has a list in REST only."""
        if self.is_old and not self.is_rest:
            return await WIRES[0].ids(site)
        found = await self.call(site, "", "ListTasks", "GET", "/tasks", {})
        tasks = found if self.is_old else found["tasks"]
        return [task["id"] for task in tasks]

    async def cancel(self, site: Site, id: str) -> Any:
        """Cancel a task."""
        path = f"/tasks/{id}:cancel"
        return await self.call(site, "tasks/cancel", "CancelTask", "POST", path, {"id": id})

    @contextlib.asynccontextmanager
    async def subscribed(
        self, site: Site, id: str, after: str | None = None
    ) -> AsyncGenerator[AsyncIterator[Frame]]:
        """Follow a task, from a position or from now on."""
        headers = {**self.headers, **({} if after is None else {"last-event-id": after})}
        if not self.is_rest:
            method = "tasks/resubscribe" if self.is_old else "SubscribeToTask"
            async with site.stream(method, {"id": id}, headers=headers) as stream:
                yield stream
            return
        path = f"{'/v1' if self.is_old else ''}/tasks/{id}:subscribe"
        async with site.http.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield frames(response)

    # Receivers

    async def add_receiver(self, site: Site, task: str, id: str, url: str) -> Any:
        """Have a task's events posted somewhere."""
        config = {"id": id, "url": url}
        body = {"taskId": task, "pushNotificationConfig": config} if self.is_old else config
        if not self.is_old:
            body = {**config, "taskId": task}
        return await self.call(
            site,
            "tasks/pushNotificationConfig/set",
            "CreateTaskPushNotificationConfig",
            "POST",
            f"/tasks/{task}/{PUSH}",
            body,
        )

    async def receiver(self, site: Site, task: str, id: str) -> Any:
        """Return one of a task's receivers."""
        named = {"pushNotificationConfigId": id} if self.is_old else {}
        return await self.call(
            site,
            "tasks/pushNotificationConfig/get",
            "GetTaskPushNotificationConfig",
            "GET",
            f"/tasks/{task}/{PUSH}/{id}",
            {"id": task, **named} if self.is_old else {"taskId": task, "id": id},
        )

    async def receivers(self, site: Site, task: str) -> list[Any]:
        """Return a task's receivers."""
        found = await self.call(
            site,
            "tasks/pushNotificationConfig/list",
            "ListTaskPushNotificationConfigs",
            "GET",
            f"/tasks/{task}/{PUSH}",
            {"id": task} if self.is_old else {"taskId": task},
        )
        return found if isinstance(found, list) else found.get("configs", [])

    async def drop_receiver(self, site: Site, task: str, id: str) -> None:
        """Have a task's events posted there no more."""
        named = {"pushNotificationConfigId": id} if self.is_old else {}
        await self.call(
            site,
            "tasks/pushNotificationConfig/delete",
            "DeleteTaskPushNotificationConfig",
            "DELETE",
            f"/tasks/{task}/{PUSH}/{id}",
            {"id": task, **named} if self.is_old else {"taskId": task, "id": id},
        )


WIRES = [Wire(is_old, is_rest) for is_old in (False, True) for is_rest in (False, True)]


def body_of(frame: Frame) -> Any:
    """Return what an event is about, without envelope and wrapper."""
    found = frame.data.get("result", frame.data)
    for name in ("task", "statusUpdate", "artifactUpdate", "message"):
        if name in found:
            return found[name]
    return found
