"""API keys: which let in and which do not, and what becomes of them while a server looks on."""

import asyncio
import logging
import os
import re
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from harness.clock import SkippingClock
from harness.serving import V1, message, serving
from msgspec.structs import replace

from dragoman import Agent
from dragoman.errors import ConfigError
from dragoman.model.identity import Caller
from dragoman.security.authentication import CredentialRefused, Denied, Evidence, Gatekeeper
from dragoman.security.keys import key_file
from dragoman.security.keys.api_keys import (
    ApiKeyRecord,
    ApiKeys,
    KeyFile,
    checksum,
    decode_keys,
    new_id,
    new_text,
)

HOUR = timedelta(hours=1)


class Office:
    """A key file, keys in it, and the authenticator that looks at it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.json"
        self.clock = SkippingClock()
        self.alice, self.text = self.create("alice", "acme", scopes=["maps"])
        self.way = ApiKeys(self.path, now=self.clock.now, monotonic=self.clock.monotonic)

    def create(
        self,
        owner: str,
        tenant: str | None = None,
        *,
        scopes: list[str] | None = None,
        lifetime: timedelta | None = None,
    ) -> tuple[ApiKeyRecord, str]:
        return key_file.create(
            self.path, owner, scopes=scopes or [], tenant=tenant, lifetime=lifetime
        )

    async def caller(self, text: str) -> Caller:
        found = await self.way.authenticate(key(text))
        assert found is not None and self.way.still_holds(found)
        return found.caller

    async def reason(self, text: str) -> str:
        with pytest.raises(CredentialRefused) as refused:
            await self.way.authenticate(key(text))
        assert not text or text not in (refused.value.reason, refused.value.subject)
        return refused.value.reason


def key(text: str) -> Evidence:
    return Evidence([(b"x-api-key", text.encode("latin-1"))])


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


async def test_a_key_lets_its_owner_in_with_what_it_was_given(office: Office) -> None:
    await office.way.start()
    assert await office.caller(office.text) == Caller(
        "key:alice", True, frozenset({"maps"}), "acme"
    )
    found = await office.way.authenticate(key(office.text))
    assert found is not None and found.ref.startswith(office.alice.id)
    assert (
        await office.way.authenticate(Evidence([(b"authorization", office.text.encode())])) is None
    )


def test_keys_can_be_found_where_they_leaked_and_are_kept_as_hashes(office: Office) -> None:
    prefix, id, secret, end = office.text.split("_")
    assert (prefix, id) == ("dgm", office.alice.id)
    assert end == checksum(f"{prefix}_{id}_{secret}")
    assert re.fullmatch("[0-9A-Za-z]{43}", secret)
    kept = office.path.read_text()
    assert secret not in kept and office.text not in kept and office.alice.hash in kept
    assert office.path.stat().st_mode & 0o777 == 0o600
    assert len({new_text(new_id()) for _ in range(1000)}) == 1000


async def test_what_is_not_exactly_a_key_is_refused(office: Office) -> None:
    text = office.text
    body, _, end = text.rpartition("_")
    _, other = office.create("bob", "other")
    swapped = other.replace(other.split("_")[1], office.alice.id)
    office.clock.passed += 1
    cases = {
        new_text(new_id()): "unknown key",
        new_text(office.alice.id): "wrong secret",
        # The secret of one with the name of another, also across tenants.
        swapped: "wrong secret",
        text[:-1] + ("0" if text[-1] != "0" else "1"): "wrong secret",
        body[:-1] + ("0" if body[-1] != "0" else "1") + f"_{end}": "wrong secret",
        text.swapcase(): "not shaped",
        text[:15] + text[15:].swapcase(): "wrong secret",
        text.upper(): "not shaped",
        text.lower(): "wrong secret",
        f"dgm_{office.alice.id}": "not shaped",
        "dgm_": "not shaped",
        "": "not shaped",
        body: "not shaped",
        text + " ": "not shaped",
        text + "\n": "not shaped",
        " " + text: "not shaped",
        text + text: "not shaped",
        f"Bearer {text}": "not shaped",
        "x" * 100_000: "not shaped",
        text.replace("dgm", "dgmé"): "not shaped",
    }
    for wrong, said in cases.items():
        assert said in await office.reason(wrong), wrong
    assert (await office.caller(other)).tenant == "other"


async def test_one_bit_off_is_off_everywhere(office: Office) -> None:
    for place in range(len(office.text)):
        for bit in range(7):
            wrong = chr(ord(office.text[place]) ^ (1 << bit))
            text = office.text[:place] + wrong + office.text[place + 1 :]
            with pytest.raises(CredentialRefused):
                await office.way.authenticate(key(text))
    assert (await office.caller(office.text)).owner == "key:alice"


async def test_two_keys_in_one_request_are_refused(office: Office) -> None:
    headers = [(b"x-api-key", office.text.encode())] * 2
    with pytest.raises(CredentialRefused, match="two keys"):
        await office.way.authenticate(Evidence(headers))


async def test_an_expired_key_is_refused_also_to_who_was_let_in_before(office: Office) -> None:
    _, text = office.create("bob", lifetime=HOUR)
    office.clock.passed += 1
    gate = Gatekeeper([office.way], now=office.clock.now)
    found = await gate.admit(key(text))
    office.clock.passed = HOUR.total_seconds() - 5
    assert await gate.admit(key(text)) is found
    office.clock.passed = HOUR.total_seconds() + 5
    assert not office.way.still_holds(found)
    with pytest.raises(Denied) as denied:
        await gate.admit(key(text))
    assert denied.value.reason == "apiKey: expired key"


async def test_a_revoked_key_stops_new_requests_within_a_second(office: Office) -> None:
    gate = Gatekeeper([office.way], now=office.clock.now)
    found = await gate.admit(key(office.text))
    _, other = office.create("bob")
    key_file.revoke(office.path, office.alice.id)
    office.clock.passed += 1
    assert not office.way.still_holds(found)
    with pytest.raises(Denied) as denied:
        await gate.admit(key(office.text))
    assert (denied.value.reason, denied.value.subject) == ("apiKey: revoked key", office.alice.id)
    assert (await gate.admit(key(other))).caller.owner == "key:bob"


def test_a_key_that_was_revoked_keeps_the_time_it_was(office: Office) -> None:
    once = replace(office.alice, revoked_at=office.alice.created_at - HOUR)
    office.path.write_bytes(msgspec.json.encode(KeyFile([once])))
    assert key_file.revoke(office.path, once.id) == once == key_file.find(office.path, once.id)


async def test_a_key_that_loses_rights_is_not_remembered_with_them(office: Office) -> None:
    found = await office.way.authenticate(key(office.text))
    assert found is not None
    body = KeyFile([replace(office.alice, scopes=[])])
    office.path.write_bytes(msgspec.json.encode(body))
    office.clock.passed += 1
    assert not office.way.still_holds(found)
    assert (await office.caller(office.text)).scopes == frozenset()


async def test_a_key_whose_hash_is_another_is_not_remembered(office: Office) -> None:
    """Whoever edits the file by hand means it."""
    keeper = Gatekeeper([office.way], office.clock.now)
    await keeper.admit(key(office.text))
    body = KeyFile([replace(office.alice, hash="0" * 64)])
    office.path.write_bytes(msgspec.json.encode(body))
    office.clock.passed += 1
    with pytest.raises(Denied) as denied:
        await keeper.admit(key(office.text))
    assert denied.value.reason == "apiKey: wrong secret"


async def test_a_rotated_key_is_good_for_a_while_beside_its_successor(office: Office) -> None:
    before, after, text = key_file.rotate(office.path, office.alice.id, overlap=HOUR, lifetime=None)
    office.clock.passed += 1
    assert await office.caller(text) == await office.caller(office.text)
    assert (before.id, before.followed_by) == (office.alice.id, after.id)
    office.clock.passed += HOUR.total_seconds()
    assert await office.reason(office.text) == "expired key"
    assert (await office.caller(text)).owner == "key:alice"
    with pytest.raises(ConfigError, match=f"rotate its successor {after.id}"):
        key_file.rotate(office.path, before.id, overlap=HOUR, lifetime=None)
    key_file.revoke(office.path, after.id)
    with pytest.raises(ConfigError, match="is revoked"):
        key_file.rotate(office.path, after.id, overlap=HOUR, lifetime=None)


def test_a_successor_is_good_for_as_long_as_the_one_before_was_given(office: Office) -> None:
    bob, _ = office.create("bob", lifetime=HOUR)
    before, after, _ = key_file.rotate(office.path, bob.id, overlap=24 * HOUR, lifetime=None)
    assert before.expires_at == bob.expires_at
    assert after.expires_at is not None and after.expires_at - after.created_at == HOUR


async def test_a_server_stops_taking_a_key_within_seconds_of_its_end(office: Office) -> None:
    agent = Agent("Keyed", "Answers whoever has a key.")

    @agent.skill
    def echo(text: str) -> str:
        return text

    async with serving(agent, auth="api-key", keys=str(office.path)) as site:
        headers = V1 | {"X-API-Key": office.text}

        async def status() -> int:
            body = {"message": message("hi")}
            return (await site.http.post("/message:send", json=body, headers=headers)).status_code

        assert await status() == 200
        key_file.revoke(office.path, office.alice.id)
        async with asyncio.timeout(60):
            while await status() != 401:
                pass


async def test_a_file_that_is_gone_lets_nobody_in_until_it_is_back(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gatekeeper([office.way], now=office.clock.now)
    found = await gate.admit(key(office.text))
    whole = office.path.read_bytes()
    office.path.unlink()
    with caplog.at_level(logging.ERROR, "dragoman"):
        for _ in range(3):
            office.clock.passed += 1
            assert not office.way.still_holds(found)
            assert await office.reason(office.text) == "the key file cannot be used"
            with pytest.raises(Denied):
                await gate.admit(key(office.text))
    assert len(caplog.records) == 1 and "every caller is refused" in caplog.text
    office.path.write_bytes(whole)
    office.path.chmod(0o600)
    office.clock.passed += 1
    assert (await office.caller(office.text)).owner == "key:alice"


@pytest.mark.parametrize("breaks", ["text", "mode", "shape", "twice"])
async def test_a_file_that_breaks_while_serving_leaves_what_it_said(
    office: Office, caplog: pytest.LogCaptureFixture, breaks: str
) -> None:
    found = await office.way.authenticate(key(office.text))
    assert found is not None
    whole = office.path.read_bytes()
    match breaks:
        case "text":
            office.path.write_bytes(whole[:-10])
        case "mode":
            office.path.chmod(0o620)
        case "shape":
            office.path.write_text('{"keys": [{"id": "x"}]}')
        case _:
            office.path.write_bytes(msgspec.json.encode(KeyFile([office.alice] * 2)))
    with caplog.at_level(logging.ERROR, "dragoman"):
        for _ in range(3):
            office.clock.passed += 1
            assert office.way.still_holds(found)
            assert (await office.caller(office.text)).owner == "key:alice"
    assert len(caplog.records) == 1 and "what it said before holds" in caplog.text
    # What is whole again counts, also if it has less.
    office.path.write_bytes(msgspec.json.encode(KeyFile([])))
    office.path.chmod(0o600)
    office.clock.passed += 1
    assert not office.way.still_holds(found)


async def test_a_file_that_cannot_work_is_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(ConfigError, match="dragoman keys create"):
        await ApiKeys(path).start()
    for text, said in (
        ("", "is no key file"),
        ("[]", "is no key file"),
        ('{"version": 2, "keys": []}', "is no key file"),
        ('{"keys": [], "kyes": []}', "unknown field"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=said):
            await ApiKeys(path).start()
    path.write_text('{"keys": []}')
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="chmod 600"):
        await ApiKeys(path).start()


def test_a_file_of_somebody_elses_making_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("not ours")
    with pytest.raises(ConfigError, match="is no key file"):
        key_file.create(path, "alice", scopes=[], tenant=None, lifetime=None)
    assert path.read_text() == "not ours"
    with pytest.raises(ConfigError, match="there is no key nobody"):
        key_file.revoke(tmp_path / "other.json", "nobody")
    assert not (tmp_path / "other.json").exists()


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "keys.json"
    link.symlink_to(tmp_path / "there" / "keys.json")
    key_file.create(link, "alice", scopes=[], tenant=None, lifetime=None)
    assert link.is_symlink() and len(key_file.read_keys(link)) == 1
    assert sorted(os.listdir(tmp_path / "there")) == ["keys.json", "keys.json.lock"]


@pytest.mark.parametrize("name", ["X-My-Key", "api-key"])
async def test_another_header_may_bring_the_key(office: Office, name: str) -> None:
    way = ApiKeys(office.path, header=name)
    await way.start()
    assert way.schemes[way.name] == {"apiKeySecurityScheme": {"location": "header", "name": name}}
    assert way.reads == {name.lower().encode()}
    found = await way.authenticate(Evidence([(name.lower().encode(), office.text.encode())]))
    assert found is not None and await way.authenticate(key(office.text)) is None


@pytest.mark.parametrize("name", ["", "X Key", "Authorization", "x-kéy", "X-Key\n"])
def test_what_is_no_header_for_keys_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="api_key_header"):
        ApiKeys(tmp_path / "keys.json", header=name)


def test_the_card_and_the_challenge_say_api_key(office: Office) -> None:
    assert office.way.challenge == 'ApiKey realm="dragoman"'
    assert office.way.schemes[office.way.name] == {
        "apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}
    }
    assert decode_keys(office.path, office.path.read_bytes()) == [office.alice]
