"""PyPI crewai as a client: what an agent of a crew does when it delegates, streaming by default."""

import logging
import os
from typing import Any

# It sends figures on its use to its makers unless it is told not to.
os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}

import talking
from crewai.a2a.auth.client_schemes import BearerTokenAuth
from crewai.a2a.updates.polling.config import PollingConfig
from crewai.a2a.utils.delegation import aexecute_a2a_delegation
from talking import same

CARD = "/.well-known/agent-card.json"
WORDS = ("completed", talking.WHOLE.split())


class Crew:
    def __init__(self, place: talking.Place) -> None:
        self.place = place

    async def delegate(self, text: str, *, polls: bool = False, **more: Any) -> Any:
        given = {"endpoint": self.place.address + CARD, "auth": None} | more
        updates = PollingConfig(interval=0.1, timeout=60) if polls else None
        return await aexecute_a2a_delegation(
            timeout=60, task_description=text, updates=updates, **given
        )

    async def send(self) -> None:
        done = await self.delegate("echo hello", polls=True)
        same((done["status"].value, done["result"]), ("completed", "hello"))

    async def stream(self) -> None:
        done = await self.delegate(f"chunks {talking.CHUNKS}")
        # It joins everything that was said with spaces, what the agent said meanwhile first.
        same((done["status"].value, done["result"].split()[-talking.CHUNKS :]), WORDS)

    async def ask(self) -> None:
        await self.answer(polls=True)

    async def ask_in_a_stream(self) -> None:
        await self.answer(polls=False)

    async def answer(self, *, polls: bool) -> None:
        asked = await self.delegate("ask", polls=polls)
        same((asked["status"].value, asked["error"]), ("input-required", talking.QUESTION))
        last = next(one for one in reversed(asked["history"]) if one.task_id)
        to = {"task_id": last.task_id, "context_id": last.context_id}
        done = await self.delegate("Graz", polls=polls, **to)
        same(done["status"].value, "completed")
        same(done["result"].removeprefix(f"{talking.QUESTION} "), "got Graz")

    async def failure(self) -> None:
        done = await self.delegate("fail")
        same(done["status"].value, "failed")
        if talking.REASON not in done["error"]:
            raise AssertionError(done["error"])

    async def auth(self) -> None:
        at = {"endpoint": self.place.guarded + CARD}
        token = BearerTokenAuth(token=self.place.token)
        done = await self.delegate("echo hello", auth=token, **at)
        same((done["status"].value, done["result"]), ("completed", "hello"))
        wrong = await self.delegate("echo hello", auth=BearerTokenAuth(token="wrong"), **at)
        same(wrong["status"].value, "failed")
        if "401" not in wrong["error"]:
            raise AssertionError(wrong["error"])


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    talking.run(Crew)
