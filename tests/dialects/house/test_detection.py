"""Who speaks: a house is known by its path, by its methods, or by what only it would say."""

from typing import Any

import pytest

from dragoman import Agent
from dragoman.config import HOUSES, DialectSettings, Settings, load_settings
from dragoman.dialects import house
from dragoman.dialects.house import NEXUS, nexus, r, selectools, v0_1
from dragoman.errors import ConfigError
from dragoman.server.app import App
from tests.dialects.house.housemates import nexus_message

SEND, STREAM, GET = "message/send", "message/stream", "tasks/get"


def message(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"message": {"role": "user", "parts": list(parts), **more}}


TEXT = {"kind": "text", "text": "x"}
TYPED = {"type": "text", "text": "x"}
FLAT = {"type": "text", "data": "x"}
DATA = {"type": "data", "data": {"a": 1}}
TOOL = {"kind": "tool-result", "toolUseId": "q", "result": 1}


@pytest.mark.requirement("4.2-house")
@pytest.mark.parametrize(
    ("method", "params", "spoken"),
    [
        (SEND, message(TEXT), None),
        (SEND, message(TYPED), None),
        (SEND, message(FLAT), "nexus"),
        (SEND, message(DATA), None),
        (SEND, message(DATA, FLAT), "nexus"),
        (SEND, message({"type": "image", "data": "x"}), "nexus"),
        (SEND, message({"type": "file", "file": {}, "data": "x"}), None),
        (STREAM, message(FLAT), None),
        (SEND, message(TEXT, TOOL), "r"),
        (STREAM, message(TEXT, {"kind": "tool-use"}), "r"),
        (SEND, message(TEXT, inputRequest={}), "r"),
        (GET, {"taskId": "t"}, "r"),
        (GET, {"id": "t"}, None),
        (GET, {"id": "t", "taskId": "t"}, None),
        ("tasks/send", message(TEXT), "selectools"),
        ("tasks/send", message(TYPED), "0.1"),
        ("tasks/sendSubscribe", message(TYPED), "0.1"),
        (SEND, {}, None),
        (SEND, [], None),
        (SEND, {"message": {"parts": [1, None, "x"]}}, None),
        ("tasks/send", 7, "selectools"),
    ],
)
def test_a_house_is_known_by_what_only_it_would_say(
    method: str, params: Any, spoken: str | None
) -> None:
    """N-5, R-13, R-16, S-6: and everything else is official."""
    kinds = {nexus.Nexus: "nexus", r.R: "r", selectools.Selectools: "selectools", v0_1.V0_1: "0.1"}
    found = house.by_request(method, params, HOUSES)
    assert (None if found is None else kinds[type(found)]) == spoken
    assert house.by_request(method, params, set(HOUSES) - {spoken}) is None
    assert house.by_request(method, params, ()) is None
    # The one look that most calls get is never wrong about a house.
    assert spoken is None or not house.is_official(method, params)


@pytest.mark.requirement("4.2-house")
def test_a_house_that_is_left_out_has_no_path() -> None:
    """N-3, R-1: `dialects` names those that are served."""

    agent = Agent("A", "It answers.")

    def paths(**settings: str) -> list[str]:
        app = App(agent, settings=load_settings({}, store="memory:", **settings))
        own = ("/api/v1/a2a", "/api/a2a", "/a2a/tasks/send")
        return [path for path in own if path in app.site.routes.paths()]

    assert paths() == ["/api/v1/a2a", "/api/a2a", "/a2a/tasks/send"]
    assert paths(dialects="r, corvid") == ["/api/a2a", "/a2a/tasks/send"]
    assert paths(dialects="nexus", transport="rest") == []
    assert paths(dialects="none") == []
    with pytest.raises(ConfigError, match="did you mean nexus"):
        App(agent, settings=Settings(dialects=DialectSettings(houses=["nexsu"])))


def test_a_card_shows_whose_agent_it_is() -> None:
    """N-1, C-16: by what official cards have, and these have not."""
    assert house.by_card({"name": "n", "url": "http://a"}) is NEXUS
    assert house.by_card({"url": "http://a", "supportedProtocols": []}) is house.CORVID
    assert house.by_card({"url": "http://a", "protocolVersion": "0.3.0"}) is None


def test_the_same_words_to_the_same_task_have_the_same_id_and_to_another_not() -> None:
    """X-23, N-12: as have no two messages to no task."""

    def id_of(**more: Any) -> str:
        operation = NEXUS.decode_request(SEND, {"message": nexus_message(), **more})
        return operation.message.message_id  # type: ignore[attr-defined]

    assert id_of(id="a") == id_of(id="a") != id_of(id="b")
    assert id_of() != id_of()
