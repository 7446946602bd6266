"""Agent cards: every way to name one, what is wrong with one, who signed it."""

import json
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk

from dragoman.testing.scripted.connection import ScriptedConnection
from dragoman.testing.scripted.demo import demo
from dragoman.testing.scripted.serve import hosted
from tests.cli.requirements.desk import Desk, sitting, together

CARD = "/.well-known/agent-card.json"


@pytest.mark.cli("A2ACLI_CARD_GET_001")
def test_a_card_is_found_by_host_url_and_file_and_its_first_interface_is_used(
    folder: Path,
) -> None:
    for scenario, method in (("rest-first", "HTTP+JSON"), ("1.0-only", "JSONRPC")):
        with sitting(folder, scenarios=[scenario]) as desk:
            first = desk.json("card", "get")
            (folder / "card.json").write_text(json.dumps(first))
            host = desk.url.removeprefix("http://")
            file = (folder / "card.json").as_uri()
            refs = (host, f"{desk.url}/", desk.url + CARD, "./card.json", file)
            found = together(*(lambda r=ref: desk.json("card", "get", a=r) for ref in refs))
            assert found == [first] * len(refs)
            assert first["supportedInterfaces"][0]["protocolBinding"] == method
            desk.run("send", "echo hello", a="./card.json")
            sent = [seen for seen in desk.seen() if seen.method.startswith("Send")]
            assert [seen.binding for seen in sent] == [method]
            text = desk.run("card", "get").fields
            assert text["Selected"].endswith(f"({method} 1.0)")
            assert {"Name", "Streaming", "Push", "Extended-Card", "Interface", "Skill"} <= {*text}


@pytest.mark.cli("A2ACLI_CARD_GET_001")
def test_a_url_with_a_path_is_asked_as_it_is(desk: Desk) -> None:
    before = len(desk.agent.requests)
    failed = desk.run("card", "get", "-o", "json", a=desk.url + "/other/place", exit=3)
    assert failed.error["code"] == "A2ACLI_ERR_CARD_NOT_FOUND"
    assert {seen.path for seen in desk.agent.requests[before:]} == {"/other/place"}


@pytest.mark.cli("A2ACLI_CARD_GET_002")
def test_a_card_is_checked_by_its_schema_and_every_finding_is_listed(desk: Desk) -> None:
    desk.run("card", "get", "--validate")
    good = desk.json("card", "get")
    lacking = {name: value for name, value in good.items() if name not in ("skills", "version")}
    wrong = good | {"defaultInputModes": "text/plain", "description": 7}
    cases = ((lacking, ("skills", "version")), (wrong, ("defaultInputModes", "description")))
    for number, (card, places) in enumerate(cases):
        path = desk.folder / f"bad-{number}.json"
        path.write_text(json.dumps(card))
        failed = desk.run("card", "get", "--validate", "-o", "json", a=str(path), exit=1)
        assert failed.error["code"] == "A2ACLI_ERR_CARD_INVALID"
        assert all(place in failed.error["message"] for place in places)


@pytest.mark.cli("A2ACLI_CARD_GET_003")
def test_the_extended_card_is_asked_for_only_with_a_scheme_of_the_public_one(
    desk: Desk, folder: Path
) -> None:
    none = desk.run("card", "get", "--extended", "-o", "json", exit=1)
    assert none.error["code"] == "UnsupportedOperationError" and none.error["a2aCode"] is None
    assert desk.seen("GetExtendedAgentCard") == []
    with sitting(folder, auth="bearer") as guarded:
        extended = ("card", "get", "--extended", "-o", "json")
        missing, other = together(
            lambda: guarded.run(*extended, exit=4),
            lambda: guarded.run(*extended, "--api-key", "demo-secret", exit=4),
        )
        for failed in (missing, other):
            assert failed.error["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
        assert guarded.seen("GetExtendedAgentCard") == []
        card = guarded.run(*extended, env={"A2ACLI_BEARER": "demo-secret"}).json
        assert "internal" in [skill["id"] for skill in card["skills"]]
        (asked,) = guarded.seen("GetExtendedAgentCard")
        assert asked.headers["authorization"] == "Bearer demo-secret"
        kept = "".join(path.read_text(errors="replace") for path in guarded.files())
        assert "Known to callers who are." not in kept


def _trusted(path: Path) -> jwk.ECKey:
    """Make a key, and a file of those that are trusted with nothing else in it."""
    key = jwk.ECKey.generate_key("P-256", {"kid": "demo"}, private=True)
    path.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    return key


@pytest.mark.cli("A2ACLI_CARD_GET_004")
def test_a_signature_is_verified_unverifiable_or_absent(desk: Desk, folder: Path) -> None:
    private, keys, others = (folder / n for n in ("private.pem", "keys.json", "others.json"))
    private.write_bytes(_trusted(keys).as_pem(private=True))
    _trusted(others)
    look = ("card", "get", "--no-cache")

    def verdict(at: Desk, *more: Any) -> str:
        return at.run(*look, *more).fields["Signature"].split()[0]

    with sitting(folder, sign_key=str(private)) as good:
        card, failed = good.run(*look, "-o", "json"), good.run(*look, "--require-signature", exit=1)
        assert card.json["signatures"] and "Signature: unverifiable" in card.err
        assert "A2ACLI_ERR_CARD_INVALID" in failed.err
        assert verdict(good, "--keys", keys, "--require-signature") == "verified"
        assert verdict(good, "--keys", others) == "unverifiable"
    # In a home of its own: it may get the port of the other, whose card is kept.
    (folder / "second").mkdir()
    with sitting(folder / "second", sign_key=str(private), scenarios=["forged"]) as forged:
        assert verdict(forged, "--keys", keys) == "unverifiable"
        forged.run(*look, "--keys", keys, "--require-signature", exit=1)
    assert verdict(desk) == "absent"


@pytest.mark.cli("A2ACLI_CARD_GET_005")
def test_a_name_in_a_catalog_is_resolved_wherever_a_card_goes(desk: Desk, folder: Path) -> None:
    asked: list[str] = []

    async def catalog(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await demo()(scope, receive, send)
        connection = ScriptedConnection(scope, receive, send)
        asked.append(connection.path)
        entries = [{"name": "weather", "url": desk.url + CARD}]
        return await connection.answer(200, json.dumps({"entries": entries}).encode())

    with hosted(catalog) as url:
        host = url.removeprefix("http://")
        env = {"DRAGOMAN_CATALOG": f"{url}/all.json"}
        sent, card, direct, unknown = together(
            lambda: desk.run("send", "echo hi", "-o", "json", a="@weather", env=env),
            lambda: desk.json("card", "get", a="@weather", env=env),
            lambda: desk.json("send", "echo hi", a=f"catalog+http://{host}/all.json#weather"),
            lambda: desk.run("send", "hi", "-o", "json", a="@nobody", env=env, exit=3),
        )
    assert sent.json["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert card == desk.json("card", "get")
    assert direct["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert unknown.error["code"] == "A2ACLI_ERR_CARD_NOT_FOUND"
    assert set(asked) == {"/all.json"}
