"""Finding agents."""

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import InvalidParams
from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.search import Search, SearchIndex, may_see
from dragoman.model.card import AgentSkill
from dragoman.model.identity import Principal

TRUST = {"ada": 90, "bob": 50, "cyd": 50, "dan": 10, "amy": 50}


def trust(id: str) -> int:
    return TRUST[id]


def agent(id: str, **more: Any) -> Registered:
    skills = [AgentSkill(id=f"{id}-skill", name="Skill", description="Does it.", tags=["odd"])]
    values: dict[str, Any] = {"title": id.title(), "skills": skills, "status": "online", **more}
    return Registered(id=id, name=f"name-of-{id}", url=f"https://{id}.example.com/", **values)


def index() -> SearchIndex:
    found = SearchIndex()
    found.fill(
        [
            agent("dan", tags=["Geo"], status="offline", owner=Principal.read("dora")),
            agent("cyd", description="Finds WAYS to Rome", price=5, tags=["travel", "geo"]),
            agent("ada", description="Sums", tags=["math"], price=9),
            agent("bob", description="Cooks", status="degraded", owner=Principal.read("bo")),
        ]
    )
    return found


def ids(**asked: Any) -> list[str]:
    return [one.id for one in index().search(Search(**asked), trust).agents]


def test_the_trusted_come_first_and_equals_by_name() -> None:
    assert ids() == ["ada", "bob", "cyd", "dan"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"text": "ways rome"}, ["cyd"]),
        ({"text": "ways paris"}, []),
        ({"text": "NAME-OF-B"}, ["bob"]),
        ({"text": "odd"}, ["ada", "bob", "cyd", "dan"]),
        ({"text": "ada-skill"}, ["ada"]),
        ({"skill": "cyd-skill"}, ["cyd"]),
        ({"skill": "cyd"}, []),
        ({"tags": ["geo", "math"]}, ["ada", "cyd", "dan"]),
        ({"tags": ["odd"]}, ["ada", "bob", "cyd", "dan"]),
        ({"category": "travel"}, ["cyd"]),
        ({"min_trust": 50}, ["ada", "bob", "cyd"]),
        ({"max_price": 5}, ["bob", "cyd", "dan"]),
        ({"max_price": 0}, ["bob", "dan"]),
        ({"status": "degraded"}, ["bob"]),
        ({"viewer": Principal.read("nobody")}, ["ada", "cyd"]),
        ({"viewer": Principal.read("dora")}, ["ada", "cyd", "dan"]),
        ({"viewer": Principal.read("dora"), "status": "offline"}, ["dan"]),
        ({"viewer": Principal.read("bo"), "status": "offline"}, []),
        ({"owner": Principal.read("bo")}, ["bob"]),
        ({"tags": ["geo"], "max_price": 5, "status": "online", "min_trust": 20}, ["cyd"]),
    ],
)
def test_what_is_asked_for_is_found(asked: dict[str, Any], found: list[str]) -> None:
    assert ids(**asked) == found


def test_pages_have_the_total_of_all() -> None:
    page = index().search(Search(limit=2, offset=1), trust)
    assert [one.id for one in page.agents] == ["bob", "cyd"] and page.total == 4
    assert index().search(Search(offset=9), trust).agents == []


def test_pages_go_on_behind_an_agent_whatever_comes_and_goes_before_it() -> None:
    found = index()
    page = found.search(Search(limit=2), trust)
    assert [one.id for one in page.agents] == ["ada", "bob"] and page.next is not None
    # Among those that were shown, and the one that the page ended with.
    found.put(agent("amy"))
    assert found.remove("bob") is not None
    rest = found.search(Search(limit=2, after=page.next), trust)
    assert [one.id for one in rest.agents] == ["cyd", "dan"]
    assert rest.total == 4 and rest.next is None
    # It is the name of no agent any more, and a score that no agent has.
    assert found.search(Search(after=(0, "")), trust).agents == []
    assert len(found.search(Search(after=(100, "")), trust).agents) == 4
    assert found.search(Search(after=page.next, min_trust=60), trust).agents == []


@pytest.mark.parametrize(
    "asked",
    [
        {"limit": 0},
        {"limit": 101},
        {"offset": -1},
        {"min_trust": 101},
        {"text": "x" * 1001},
        {"text": "x " * 17},
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams):
        ids(**asked)


def test_an_agent_is_found_by_id_and_by_name() -> None:
    found = index()
    assert found.get("ada") is found.get("name-of-ada") is not None
    assert found.get("name-of-a") is None and len(found) == 4


def test_changes_are_found_at_once() -> None:
    found = index()
    found.put(agent("ada", description="Sings"))
    assert [one.id for one in found.search(Search(text="sings"), trust).agents] == ["ada"]
    assert found.search(Search(text="sums"), trust).total == 0
    found.put(agent("ada", description="Sings", status="offline"))
    assert [one.id for one in found.search(Search(status="offline"), trust).agents] == [
        "ada",
        "dan",
    ]
    renamed = agent("ada")
    found.put(Registered(id="ada", name="zoe", title="Zoe", url=renamed.url))
    assert [one.name for one in found][-1] == "zoe" and found.get("name-of-ada") is None
    assert found.remove("ada") is not None and found.remove("ada") is None
    assert len(found) == 3 and found.get("zoe") is None


def test_what_is_not_online_is_read_by_those_it_is_for() -> None:
    away = agent("dan", status="offline", owner=Principal.read("dora"))
    for viewer in (None, Principal.read("dora"), Principal.read("anyone")):
        assert may_see(away, viewer) and may_see(agent("ada"), viewer)
    limited = replace(away, callers=["cid"])
    assert may_see(limited, Principal.read("cid")) and may_see(limited, Principal.read("dora"))
    assert not may_see(limited, Principal.read("anyone"))
