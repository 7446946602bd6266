"""PyPI a2a-lite as a client: an `AgentNetwork`, which calls skills by name with parameters.

The name and the parameters go as JSON in a text; the agent of the tests reads the `message` there.
"""

import httpx
import talking
from a2a_lite import AgentNetwork
from a2a_lite.client import ClientConfig
from a2a_lite.errors import RemoteAgentError
from talking import same


class Lite:
    def __init__(self, place: talking.Place) -> None:
        self.place = place

    async def open(self) -> AgentNetwork:
        network = AgentNetwork()
        network.add("agent", self.place.address)
        await network.discover("agent")
        return network

    async def send(self) -> None:
        network = await self.open()
        same(await network.call("agent", "play", message="echo hello"), "hello")

    async def stream(self) -> None:
        network = await self.open()
        said = f"chunks {talking.CHUNKS}"
        texts = [text async for text in network.stream("agent", "play", message=said)]
        # What an agent says while it works is a text there too.
        same("".join(texts).removeprefix("Working"), talking.WHOLE)

    async def get(self) -> None:
        network = await self.open()
        handle = await network.call("agent", "play", message="echo hello", return_handle=True)
        found = await handle.get_status()
        task = found.get("result", found)
        task = task.get("task", task)
        same((task["id"], task["status"]["state"]), (handle.task_id, "TASK_STATE_COMPLETED"))

    async def failure(self) -> None:
        network = await self.open()
        try:
            [text async for text in network.stream("agent", "play", message="fail")]
        except RemoteAgentError as error:
            same(talking.REASON in str(error), True)
        else:
            raise AssertionError("it failed, and nobody was told")

    async def auth(self) -> None:
        for token in (self.place.token, "wrong"):
            network = AgentNetwork()
            config = ClientConfig(headers={"Authorization": f"Bearer {token}"})
            network.add("agent", self.place.guarded, client_config=config)
            await network.discover("agent")
            try:
                same(await network.call("agent", "play", message="echo hello"), "hello")
            except httpx.HTTPStatusError as error:
                same((token, error.response.status_code), ("wrong", 401))
            else:
                same(token, self.place.token)


if __name__ == "__main__":
    talking.run(Lite)
