"""PyPI strands-agents as a client: an `A2AAgent`, which always streams."""

import warnings

import httpx
import talking
from a2a.client import ClientConfig
from strands.agent.a2a_agent import A2AAgent
from talking import same


def text_of(result: object) -> str:
    return "".join(block.get("text", "") for block in result.message["content"])


class Strands:
    def __init__(self, place: talking.Place) -> None:
        self.place = place
        self.agent = A2AAgent(place.address, timeout=60)

    async def send(self) -> None:
        same(text_of(await self.agent.invoke_async("echo hello")), "hello")

    async def stream(self) -> None:
        events = [event async for event in self.agent.stream_async(f"chunks {talking.CHUNKS}")]
        same(text_of(events[-1]["result"]), talking.WHOLE)
        if sum(event.get("type") == "a2a_stream" for event in events) < talking.CHUNKS:
            raise AssertionError(f"not in chunks: {events}")

    async def ask(self) -> None:
        result = await self.agent.invoke_async("ask")
        same((result.stop_reason, text_of(result)), ("interrupt", talking.QUESTION))

    async def failure(self) -> None:
        same(text_of(await self.agent.invoke_async("fail")), talking.REASON)

    async def auth(self) -> None:
        same(text_of(await self.guarded(self.place.token).invoke_async("echo hello")), "hello")
        try:
            await self.guarded("wrong").invoke_async("echo hello")
        except Exception as error:
            if "401" not in str(error):
                raise
        else:
            raise AssertionError("not refused")

    def guarded(self, token: str) -> A2AAgent:
        client = httpx.AsyncClient(timeout=60, headers={"Authorization": f"Bearer {token}"})
        return A2AAgent(self.place.guarded, client_config=ClientConfig(httpx_client=client))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    talking.run(Strands)
