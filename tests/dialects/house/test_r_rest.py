"""R over REST, served: bodies of 0.3's JSON schema below `/v1`, and events without any wrapper."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from harness.serving import Frame, Site, frames, old_message, serving
from harness.waiting import eventually, within

from dragoman.engine.engine import Engine
from tests.dialects.house.housemates import UNKNOWN, agent, gates, rx_message, to

SEND, STREAM = "/v1/message:send", "/v1/message:stream"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def events(site: Site, said: Any, **headers: str) -> list[Frame]:
    async with (
        asyncio.timeout(60),
        site.http.stream("POST", STREAM, json={"message": said}, headers=headers) as response,
    ):
        assert response.status_code == 200
        return [frame async for frame in frames(response)]


async def test_events_have_no_envelope_and_no_wrapper(site: Site) -> None:
    """R-20, R-25, R-007: raw, and the last is a final status."""
    found = [frame.data for frame in await events(site, rx_message("x"))]
    assert [event["kind"] for event in found][:2] == ["task", "status-update"]
    assert (found[-1]["status"]["state"], found[-1]["final"]) == ("completed", True)
    assert not any("jsonrpc" in event for event in found)


async def test_a_server_may_put_events_in_an_envelope() -> None:
    """R-30: for R's own clients, which expect what its server does not send."""
    async with serving(agent, rx_rest_wrap=True) as site:
        found = [frame.data for frame in await events(site, rx_message("x"))]
        assert all((event["jsonrpc"], event["id"]) == ("2.0", None) for event in found)
        assert found[-1]["result"]["final"] is True


async def test_a_message_is_answered_by_a_bare_task(site: Site) -> None:
    """R-21, R-008: with its results."""
    task = (await site.http.post(SEND, json={"message": rx_message("x")})).json()
    assert (task["kind"], task["status"]["state"]) == ("task", "completed")
    assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "Echo: x"}]


async def test_a_task_is_made_under_the_id_its_caller_chose_and_goes_on_under_it(
    site: Site,
) -> None:
    """R-21, R-008: an id nobody knows begins a task."""
    id = str(uuid.uuid4())
    said = rx_message("go", taskId=id, contextId="r-1", metadata=to("ask"))
    task = (await site.http.post(SEND, json={"message": said})).json()
    assert (task["id"], task["contextId"]) == (id, "r-1")
    assert task["status"]["state"] == "input-required"
    more = (await site.http.post(SEND, json={"message": rx_message("Rome", taskId=id)})).json()
    assert (more["id"], more["status"]["state"]) == (id, "completed")


async def test_elsewhere_an_unknown_task_is_not_begun(site: Site) -> None:
    """R-21: ids are chosen in this house alone."""
    error = await site.refusal("message/send", {"message": old_message("x", taskId=UNKNOWN)})
    assert error["code"] == -32001


async def test_the_id_of_another_s_task_is_as_free_as_any(tmp_path: Path) -> None:
    """R-21: who takes it gets a task of its own, and nothing of the other one."""
    file = tmp_path / "tokens.toml"
    file.touch(mode=0o600)
    file.write_text('[a]\ntoken = "alice-alice-alice"\n[b]\ntoken = "bobby-bobby-bobby"\n')
    alice = {"authorization": "Bearer alice-alice-alice"}
    bob = {"authorization": "Bearer bobby-bobby-bobby"}
    async with serving(agent, auth_tokens=str(file)) as site:
        said = rx_message("mine", metadata=to("ask"))
        one = (await site.http.post(SEND, json={"message": said}, headers=alice)).json()

        async def taken(id: str) -> Any:
            said = rx_message("yours", taskId=id, messageId="m", contextId="c")
            task = (await site.http.post(SEND, json={"message": said}, headers=bob)).json()
            task["status"].pop("timestamp")
            text = json.dumps(task).replace(id, "<id>")
            return text.replace(task["artifacts"][0]["artifactId"], "<artifact>")

        assert await taken(one["id"]) == await taken(UNKNOWN)


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (rx_message("x", kind="task"), 400, -32602),
        (rx_message("x", parts=[]), 400, -32602),
        (rx_message("x", metadata=to("nothing")), 400, -32602),
    ],
    ids=["kind", "parts", "skill"],
)
@pytest.mark.parametrize("path", [SEND, STREAM])
async def test_an_error_is_an_object_with_the_status_of_http(
    site: Site, path: str, said: Any, status: int, code: int
) -> None:
    """R-22: and the members of 0.3 beside it, for others with such bodies."""
    response = await site.http.post(path, json={"message": said})
    body = response.json()
    assert (response.status_code, body["error"]["code"], body["code"]) == (status, status, code)
    assert body["error"]["message"] == body["message"]


async def test_a_message_to_a_task_that_ended_is_not_supported(site: Site) -> None:
    """R-22: one status for each error of the table."""
    task = (await site.http.post(SEND, json={"message": rx_message("x")})).json()
    again = await site.http.post(SEND, json={"message": rx_message("y", taskId=task["id"])})
    assert (again.status_code, again.json()["error"]["code"]) == (501, 501)


async def test_a_failure_of_ours_is_500_and_says_nothing_about_us(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-22: before the first event as an answer, after it as the last event."""
    follow = Engine.follow

    async def broken(engine: Engine, call: Any) -> Any:
        async for batch in follow(engine, call):
            yield batch
            raise RuntimeError("the secret of the house")

    async def shut(engine: Engine, call: Any) -> Any:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(Engine, "follow", broken)
    first, last = await events(site, rx_message("x"))
    error = last.data["error"]
    assert (error["code"], error["data"]) == (500, {"taskId": first.data["id"]})
    monkeypatch.setattr(Engine, "answer", shut)
    response = await site.http.post(SEND, json={"message": rx_message("x")})
    assert (response.status_code, response.json()["error"]["code"]) == (500, 500)
    assert "secret" not in response.text + json.dumps(last.data)


async def test_a_question_leaves_the_stream_open(site: Site) -> None:
    """R-31: as at home."""
    said = {"message": rx_message("go", metadata=to("ask"))}
    async with asyncio.timeout(60), site.http.stream("POST", STREAM, json=said) as response:
        stream = frames(response)
        async for frame in stream:
            if frame.data.get("status", {}).get("state") == "input-required":
                break
        assert frame.data["final"] is False
        form = frame.data["status"]["message"]["inputRequest"]
        answer = rx_message("here", referenceTaskIds=[frame.data["taskId"]])
        result = {"kind": "tool-result", "toolUseId": form["requestId"], "result": "Rome"}
        answer["parts"].append(result)
        done = (await site.http.post(SEND, json={"message": answer})).json()
        rest = [frame.data async for frame in stream]
    assert done["id"] == rest[-1]["taskId"] and done["status"]["state"] == "completed"
    assert rest[-1]["final"] is True


async def test_statuses_say_which_trace_they_belong_to(site: Site) -> None:
    """R-26, R-073: that of the request, with a place of our own in it."""
    found = await events(site, rx_message("x"), traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
    statuses = [frame.data for frame in found if frame.data["kind"] == "status-update"]
    assert {status["metadata"]["traceId"] for status in statuses} == {TRACE}
    assert all(len(status["metadata"]["spanId"]) == 16 for status in statuses)


async def test_a_quiet_stream_is_kept_alive_by_a_comment() -> None:
    """R-23, R-009: in these words."""
    async with serving(agent, keepalive=0.05) as site:
        said = {"message": rx_message("quiet", metadata=to("hold"))}
        async with asyncio.timeout(60), site.http.stream("POST", STREAM, json=said) as response:
            async for frame in frames(response):
                if frame.comment is not None:
                    break
            assert frame.comment == "keep-alive"
        gates.setdefault("quiet", asyncio.Event()).set()


async def test_a_task_goes_on_when_its_reader_leaves_unless_told_otherwise() -> None:
    """R-24, X-13: `cancel_on_disconnect` ends it."""
    for cancels, state in ((False, "TASK_STATE_COMPLETED"), (True, "TASK_STATE_CANCELED")):
        name = f"leaving-{cancels}"
        async with serving(agent, cancel_on_disconnect=cancels) as site:
            said = {"message": rx_message(name, metadata=to("hold"))}
            async with site.http.stream("POST", STREAM, json=said) as response:
                id = (await within(anext(frames(response)))).data["id"]
            if not cancels:
                gates.setdefault(name, asyncio.Event()).set()
            assert (await site.rested(id))["status"]["state"] == state


async def test_who_only_follows_a_task_and_leaves_does_not_end_it() -> None:
    """R-24: it is the one who began the task that means it."""
    async with serving(agent, cancel_on_disconnect=True) as site:
        params = {"message": old_message("follower", metadata=to("hold"))}
        configuration = {"blocking": False}
        task = await site.call("message/send", params | {"configuration": configuration})
        async with site.stream("tasks/resubscribe", {"id": task["id"]}) as stream:
            await within(anext(stream))
        await eventually(lambda: not len(site.app.site.streams))
        gates.setdefault("follower", asyncio.Event()).set()
        assert (await site.rested(task["id"]))["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_answers_say_how_many_requests_are_left() -> None:
    """R-27, R-072: limit, remaining, and when there are more again, in seconds since the epoch."""
    async with serving(agent, rate_limit="100/60s") as site:
        response = await site.http.post(SEND, json={"message": rx_message("x")})
        limits = {name: int(response.headers[f"x-ratelimit-{name}"]) for name in ("limit", "reset")}
        assert limits["limit"] == 100 and limits["reset"] > 1_600_000_000
        assert int(response.headers["x-ratelimit-remaining"]) < 100


async def test_the_card_asks_for_a_token_in_the_form_of_a_jwt() -> None:
    """R-28, R-070: as a scheme that everything demands."""
    secret = "0123456789abcdef0123456789abcdef"
    given = {"auth": "jwt", "jwt_secret": secret, "jwt_issuer": "i", "jwt_audience": "a"}
    async with serving(agent, **given) as site:
        card = (await site.http.get("/.well-known/agent.json")).json()
        ((name, scheme),) = card["securitySchemes"].items()
        assert (name, scheme["type"], scheme["scheme"].lower()) == ("bearer", "http", "bearer")
        assert scheme["bearerFormat"] == "JWT" and card["security"] == [{"bearer": []}]
        assert (await site.http.post(SEND, json={"message": rx_message("x")})).status_code == 401


async def test_without_r_such_bodies_are_plain_0_3() -> None:
    """R-20: errors and ids are then those of 0.3."""
    async with serving(agent, dialects="none") as site:
        response = await site.http.post(SEND, json={"message": old_message("x", taskId=UNKNOWN)})
        assert (response.status_code, response.json()["code"]) == (404, -32001)
        assert "error" not in response.json()
