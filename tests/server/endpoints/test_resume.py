"""Coming back to a stream: by header or query, in every dialect, and never by a silent jump."""

import json
from typing import Any

import pytest
from harness.serving import Site, message, old_message, serving
from harness.waiting import WAIT, within

from dragoman import Agent, Turn


def asking() -> Agent:
    agent = Agent("Asker", "Asks before it answers.")

    @agent.skill
    async def ask(text: str, turn: Turn) -> str:
        await turn.say("one moment")
        answer = await turn.ask("which?")
        return f"{text}, {answer.text}"

    return agent


async def opened(
    site: Site, method: str, params: Any, *, query: str = "", **headers: str
) -> tuple[Any, dict[str, str], str]:
    """Open a stream, read its first event, leave; return the event, the headers and its id."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with site.http.stream("POST", "/" + query, json=body, headers=given) as response:
        assert response.status_code == 200, await response.aread()
        lines: list[str] = []
        async for line in response.aiter_lines():
            if not line:
                break
            lines.append(line)
        fields = dict(line.split(": ", 1) for line in lines)
        return json.loads(fields["data"])["result"], dict(response.headers), fields["id"]


@pytest.mark.parametrize("position", ["99999", "x", "-3", "1.5", "9" * 40])
@pytest.mark.parametrize("method", ["SubscribeToTask", "tasks/resubscribe"])
async def test_a_position_that_is_none_of_this_log_begins_anew_and_says_so(
    position: str, method: str
) -> None:
    async with serving(asking()) as site:
        task = await site.send("hi")
        plain, headers, at = await within(opened(site, method, {"id": task["id"]}))
        assert "x-dragoman-resume" not in headers
        again, headers, id = await within(
            opened(site, method, {"id": task["id"]}, last_event_id=position)
        )
        assert headers["x-dragoman-resume"] == "reset"
        assert (again, id) == (plain, at)


@pytest.mark.parametrize("method", ["SubscribeToTask", "tasks/resubscribe"])
async def test_a_position_may_stand_in_the_query(method: str) -> None:
    async with serving(asking()) as site:
        task = await site.send("hi")
        params = {"id": task["id"]}
        first, headers, id = await within(opened(site, method, params, query="?lastEventId=2"))
        assert id == "2" and "x-dragoman-resume" not in headers
        state = first.get("task", first)["status"]["state"]
        assert state in ("TASK_STATE_WORKING", "working")
        _, headers, _ = await within(opened(site, method, params, query="?lastEventId=zz"))
        assert headers["x-dragoman-resume"] == "reset"


@pytest.mark.parametrize("method", ["SendStreamingMessage", "message/stream"])
async def test_a_message_sent_again_goes_on_from_the_position_its_sender_has(method: str) -> None:
    said = message("hi") if method == "SendStreamingMessage" else old_message("hi")
    async with serving(asking()) as site:
        everything = await site.events(method, {"message": said})
        seen = everything[1].id or ""
        again = await site.events(method, {"message": said}, headers={"last-event-id": seen})
        assert again[0].id == seen
        assert [frame.id for frame in again[1:]] == [frame.id for frame in everything[2:]]
        reset = await within(opened(site, method, {"message": said}, last_event_id="12345"), WAIT)
        assert reset[1]["x-dragoman-resume"] == "reset"
