"""The keys of a real issuer on loopback: how often it is asked, and what a bad answer leads to.

Time is moved by hand; the issuer counts what it is asked.
"""

import asyncio
import json
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.stub_servers import listening
from harness.waiting import eventually, within

from dragoman.errors import ConfigError
from dragoman.security.authentication import Denied, Evidence, Gatekeeper, Pass
from dragoman.security.jwt.authenticator import JwtAuthenticator
from dragoman.security.jwt.jwks import DISCOVERY, RemoteKeys
from dragoman.security.jwt.key_sources import FileKeys
from dragoman.testing.clock import ManualClock
from tests.security.jwt.cases import bearer
from tests.security.jwt.minting import AUDIENCE, NOW, jwk, jwks, token

pytestmark = pytest.mark.anyio
KEYS = "/jwks"


class Issuer:
    """A server that has keys, describes itself, and can be made to misbehave."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.keys: Any = jwks("ec")
        self.headers = ""
        self.description: dict[str, Any] = {}
        # Answers to give instead, by path: a status with a body, or raw bytes.
        self.instead: dict[str, tuple[int, bytes] | bytes] = {}
        # While this is closed, whoever asks waits.
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await within(reader.readuntil(b"\r\n\r\n"))
        path = head.split(b" ")[1].decode()
        self.asked[path] += 1
        self.arrived.set()
        await within(self.gate.wait())
        writer.write(self._answer(path))
        await writer.drain()

    def _answer(self, path: str) -> bytes:
        status, body = 200, b""
        instead = self.instead.get(path)
        if isinstance(instead, bytes):
            return instead
        if instead is not None:
            status, body = instead
        elif path == KEYS:
            body = json.dumps(self.keys).encode()
        elif path == DISCOVERY:
            described = {"issuer": self.url, "jwks_uri": self.url + KEYS} | self.description
            body = json.dumps(described).encode()
        else:
            status = 404
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n{self.headers}\r\n"
        return head.encode() + body


@asynccontextmanager
async def issuing() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    async with listening(issuer.talk) as issuer.port:
        yield issuer


class Door:
    """Who comes to an authenticator, with or without a memory of who came before."""

    def __init__(self, issuer: Issuer, authenticator: JwtAuthenticator, clock: ManualClock) -> None:
        self.issuer, self.authenticator, self.clock = issuer, authenticator, clock
        self.gatekeeper = Gatekeeper([authenticator], lambda: NOW)

    async def admit(self, kid: str = "ec", /, **header: Any) -> Pass:
        text = token(kid, iss=self.issuer.url, header=header)
        return await within(self.gatekeeper.admit(Evidence(bearer(text))))

    async def reason(self, kid: str = "ec", /, **header: Any) -> str:
        with pytest.raises(Denied) as denied:
            await self.admit(kid, **header)
        return denied.value.reason.partition(": ")[2]

    async def pass_by(self, seconds: float, until: Callable[[], bool] = lambda: True) -> None:
        """Let time go by, and wait until what that led to has happened."""
        self.clock.move_to(self.clock.now() + int(seconds * 1000))
        await eventually(until)


@asynccontextmanager
async def door(issuer: Issuer, **more: Any) -> AsyncIterator[Door]:
    clock = ManualClock()
    if more.pop("discovers", False):
        values: dict[str, Any] = {}
    else:
        values = {"jwks_url": issuer.url + KEYS}
    values |= {"issuer": issuer.url, "audience": [AUDIENCE], "now": lambda: NOW, "clock": clock}
    authenticator = JwtAuthenticator(**values | more)
    await within(authenticator.start())
    try:
        yield Door(issuer, authenticator, clock)
    finally:
        await within(authenticator.stop())


async def test_the_keys_are_fetched_once_and_serve_many() -> None:
    async with issuing() as issuer, door(issuer) as at:
        for number in range(50):
            assert (await at.admit(x=number)).caller.authenticated
        assert issuer.asked == {KEYS: 1}


async def test_a_thousand_unknown_keys_cost_one_fetch() -> None:
    async with issuing() as issuer, door(issuer) as at:
        reasons = {await at.reason("ec-other", kid=f"k{number}") for number in range(1000)}
        assert reasons == {"the key is not known"} and issuer.asked[KEYS] == 2
        await at.pass_by(29)
        await at.reason("ec-other")
        assert issuer.asked[KEYS] == 2
        await at.pass_by(1)
        await at.reason("ec-other")
        assert issuer.asked[KEYS] == 3


async def test_a_thousand_unknown_keys_at_once_cost_one_fetch() -> None:
    async with issuing() as issuer, door(issuer) as at:
        issuer.gate.clear()
        asking = [asyncio.create_task(at.reason("ec-other", kid=f"k{n}")) for n in range(1000)]
        issuer.arrived.clear()
        await within(issuer.arrived.wait())
        issuer.gate.set()
        assert set(await within(asyncio.gather(*asking))) == {"the key is not known"}
        assert issuer.asked[KEYS] == 2


@pytest.mark.parametrize(
    "kid", ["../../dev/null", "' OR 1=1", "k\x00", "ключ", "a b", "k" * 10_000, "k" * 257, "$(id)"]
)
async def test_a_name_that_no_issuer_gives_is_not_asked_for(kid: str) -> None:
    async with issuing() as issuer, door(issuer) as at:
        await at.reason(kid=kid)
        assert issuer.asked[KEYS] == 1


async def test_signatures_that_do_not_hold_cost_no_more_than_unknown_keys() -> None:
    async with issuing() as issuer, door(issuer) as at:
        for number in range(100):
            await at.reason("ec-other", kid="ec", x=number)
        assert issuer.asked[KEYS] == 2


async def test_a_fetch_whose_time_comes_during_another_is_that_other() -> None:
    async with issuing() as issuer, door(issuer) as at:
        await within(_waits(at.clock))
        issuer.gate.clear()
        issuer.arrived.clear()
        asking = asyncio.create_task(at.reason("ec-other"))
        await within(issuer.arrived.wait())
        await at.pass_by(300, lambda: not at.clock.waiting)
        issuer.gate.set()
        await within(asking)
        await within(_waits(at.clock))
        assert issuer.asked[KEYS] == 2


async def test_a_caller_that_gives_up_does_not_end_the_fetch_of_others() -> None:
    async with issuing() as issuer, door(issuer) as at:
        issuer.keys = jwks("ec", "ec-other")
        issuer.gate.clear()
        issuer.arrived.clear()
        first = asyncio.create_task(at.admit("ec-other", x=1))
        await within(issuer.arrived.wait())
        second = asyncio.create_task(at.admit("ec-other", x=2))
        await asyncio.sleep(0)
        first.cancel()
        issuer.gate.set()
        assert (await within(second)).caller.authenticated
        assert issuer.asked[KEYS] == 2


async def test_a_new_key_works_at_once() -> None:
    async with issuing() as issuer, door(issuer) as at:
        await at.admit()
        issuer.keys = jwks("ec", "ec-other")
        assert (await at.admit("ec-other")).caller.authenticated
        assert issuer.asked[KEYS] == 2


async def test_a_new_key_works_within_a_minute_of_an_attack_with_unknown_ones() -> None:
    async with issuing() as issuer, door(issuer) as at:
        await at.reason("ec-third")
        issuer.keys = jwks("ec", "ec-other")
        assert await at.reason("ec-other") == "the key is not known"
        await at.pass_by(30)
        assert (await at.admit("ec-other")).caller.authenticated


async def test_a_new_key_by_an_old_name_works_at_once() -> None:
    async with issuing() as issuer, door(issuer) as at:
        old = await at.admit()
        issuer.keys = {"keys": [jwk("ec-other", kid="ec")]}
        assert (await at.admit("ec-other", kid="ec")).caller.authenticated
        assert not at.gatekeeper.holds(old)


async def test_a_retired_key_opens_nothing_after_the_next_fetch() -> None:
    async with issuing() as issuer, door(issuer) as at:
        issuer.keys = jwks("ec", "ec-other")
        found = await at.admit("ec-other")
        issuer.keys = jwks("ec")
        assert at.gatekeeper.holds(found)
        await at.pass_by(300, lambda: not at.gatekeeper.holds(found))
        assert await at.reason("ec-other") == "the key is not known"
        assert (await at.admit()).caller.authenticated


async def test_a_set_that_has_become_empty_opens_nothing() -> None:
    async with issuing() as issuer, door(issuer) as at:
        found = await at.admit()
        issuer.keys = {"keys": []}
        await at.pass_by(300, lambda: not at.gatekeeper.holds(found))
        assert await at.reason() == "the key is not known"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ("", 300),
        ("Cache-Control: public, max-age=100\r\n", 100),
        ("Cache-Control: max-age=86400\r\n", 300),
        ("Cache-Control: max-age=0\r\n", 30),
        ("Cache-Control: max-age=soon\r\n", 300),
        ("Cache-Control: s-max-age=60\r\n", 300),
    ],
)
async def test_it_is_asked_again_as_often_as_it_wishes_within_limits(
    headers: str, seconds: int
) -> None:
    async with issuing() as issuer:
        issuer.headers = headers
        async with door(issuer) as at:
            await within(_waits(at.clock))
            assert at.clock.next_at == at.clock.now() + seconds * 1000
            await at.pass_by(seconds, lambda: issuer.asked[KEYS] == 2)


async def _waits(clock: ManualClock) -> None:
    while not clock.waiting:  # noqa: ASYNC110 -- a clock that nobody waits for has no event
        await asyncio.sleep(0.001)


async def test_keys_of_an_issuer_that_is_down_serve_for_a_day_and_no_longer() -> None:
    async with issuing() as issuer, door(issuer) as at:
        found = await at.admit()
        issuer.instead[KEYS] = (500, b"")
        await at.pass_by(24 * 3600 - 1, lambda: issuer.asked[KEYS] > 1)
        assert at.gatekeeper.holds(found)
        assert (await at.admit(x=1)).caller.authenticated
        await at.pass_by(2)
        assert not at.gatekeeper.holds(found)
        assert await at.reason() == "the key is not known"
        del issuer.instead[KEYS]
        await at.pass_by(60)
        assert (await at.admit(x=2)).caller.authenticated


BAD_ANSWERS: dict[str, tuple[int, bytes] | bytes] = {
    "500": (500, b'{"keys": []}'),
    "404": (404, b""),
    "HTML": (200, b"<html>Sign in</html>"),
    "10 MB": (200, b'{"keys": []}' + b" " * 10_000_000),
    "no list": (200, b'{"keys": {}}'),
    "a list": (200, b"[]"),
    "deep": (200, b"[" * 50_000),
    "cut short": b'HTTP/1.1 200 x\r\nContent-Length: 100\r\n\r\n{"keys": []}',
    "no HTTP": b"hello\r\n\r\n",
    "nothing": b"",
    "a redirect to a private address": (
        b"HTTP/1.1 302 x\r\nLocation: http://10.0.0.1/jwks\r\nContent-Length: 0\r\n\r\n"
    ),
    "a redirect to metadata": (
        b"HTTP/1.1 302 x\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    ),
    "a redirect to itself": (b"HTTP/1.1 302 x\r\nLocation: /jwks\r\nContent-Length: 0\r\n\r\n"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_a_bad_answer_leaves_the_keys_as_they_were(name: str) -> None:
    async with issuing() as issuer, door(issuer) as at:
        await at.admit()
        issuer.instead[KEYS] = BAD_ANSWERS[name]
        before = issuer.asked[KEYS]
        assert await at.reason("ec-other") == "the key is not known"
        assert issuer.asked[KEYS] > before
        assert (await at.admit(x=1)).caller.authenticated


@pytest.mark.parametrize("name", BAD_ANSWERS)
async def test_a_bad_answer_at_the_start_keeps_callers_out_until_there_is_a_good_one(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with issuing() as issuer:
        issuer.instead[KEYS] = BAD_ANSWERS[name]
        async with door(issuer) as at:
            assert await at.reason() == "the key is not known"
            assert "were not fetched" in caplog.text
            before = issuer.asked[KEYS]
            del issuer.instead[KEYS]
            await within(_waits(at.clock))
            await at.pass_by(1, lambda: issuer.asked[KEYS] > before)
            await within(_admitted(at))


async def _admitted(at: Door) -> Pass:
    while True:
        try:
            return await at.admit()
        except Denied:
            await asyncio.sleep(0.001)


async def test_an_issuer_that_is_not_there_keeps_nobody_from_starting() -> None:
    async with issuing() as issuer:
        pass
    # Nobody listens at this port any more.
    async with door(issuer) as at:
        assert await at.reason() == "the key is not known"
        pauses: list[int] = []
        for _ in range(8):
            before = at.clock.now()
            pauses.append((await at.clock.leap() - before) // 1000)
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_an_issuer_that_does_not_answer_delays_a_start_by_no_more_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.security.jwt.jwks.START_WITHIN", 0.05)
    async with issuing() as issuer:
        issuer.gate.clear()
        async with door(issuer) as at:
            asking = asyncio.create_task(at.admit())
            await within(issuer.arrived.wait())
            issuer.gate.set()
            assert (await within(asking)).caller.authenticated and issuer.asked[KEYS] == 1


async def test_a_stop_does_not_wait_for_an_issuer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.security.jwt.jwks.START_WITHIN", 0.05)
    async with issuing() as issuer:
        issuer.gate.clear()
        async with door(issuer) as at:
            asking = asyncio.create_task(at.reason())
            await asyncio.sleep(0)
            await within(at.authenticator.stop())
            assert await within(asking) == "the key is not known"
        issuer.gate.set()


async def test_a_redirect_is_followed_where_the_operator_pointed() -> None:
    async with issuing() as issuer:
        answer = b"HTTP/1.1 302 x\r\nLocation: /jwks\r\nContent-Length: 0\r\n\r\n"
        issuer.instead["/old"] = answer
        async with door(issuer, jwks_url=issuer.url + "/old") as at:
            assert (await at.admit()).caller.authenticated
            assert issuer.asked == {"/old": 1, KEYS: 1}


async def test_secrets_in_a_set_are_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    async with issuing() as issuer:
        secret = {"kty": "oct", "k": "HUSHHUSH", "kid": "ec"}
        issuer.keys = {"keys": [secret, jwk("ec-third", d="HUSHHUSH"), jwk("ec-other")]}
        async with door(issuer) as at:
            assert (await at.admit("ec-other")).caller.authenticated
            assert await at.reason() == "the key is not known"
            assert await at.reason("ec-third") == "the key is not known"
    assert "has a secret in it" in caplog.text and "HUSH" not in caplog.text


async def test_an_issuer_says_where_its_keys_are_and_where_tokens_are_to_be_had() -> None:
    async with issuing() as issuer:
        issuer.description = {
            "token_endpoint": "https://i.example/token",
            "authorization_endpoint": "https://i.example/authorize",
            "device_authorization_endpoint": "https://i.example/device",
            "grant_types_supported": ["authorization_code", "client_credentials"],
        }
        async with door(issuer, discovers=True, scopes={"read": "Reads"}) as at:
            assert (await at.admit()).caller.authenticated
            assert issuer.asked == {DISCOVERY: 1, KEYS: 1}
            await at.reason("ec-other")
            # Where the keys are is not asked again with every look at them.
            assert issuer.asked == {DISCOVERY: 1, KEYS: 2}
            common = {"tokenUrl": "https://i.example/token", "scopes": {"read": "Reads"}}
            assert at.authenticator.flows() == {
                "clientCredentials": common,
                "authorizationCode": {"authorizationUrl": "https://i.example/authorize", **common},
            }
            url = issuer.url + DISCOVERY
            scheme = {"openIdConnectSecurityScheme": {"openIdConnectUrl": url}}
            assert at.authenticator.schemes[at.authenticator.name] == scheme


async def test_an_issuer_whose_keys_have_moved_is_asked_where_they_are() -> None:
    async with issuing() as issuer, door(issuer, discovers=True) as at:
        await at.admit()
        issuer.instead[KEYS] = (404, b"")
        issuer.description["jwks_uri"] = issuer.url + "/moved"
        issuer.instead["/moved"] = (200, json.dumps(jwks("ec-other")).encode())
        await at.reason("ec-other")
        await at.pass_by(30)
        assert (await at.admit("ec-other")).caller.authenticated


@pytest.mark.parametrize(
    "described",
    [
        {"issuer": "http://127.0.0.1:1"},
        {"issuer": None},
        {"issuer": "SLASH"},
        {"jwks_uri": None},
        {"jwks_uri": 5},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "http://10.0.0.1/jwks"},
        {"jwks_uri": "http://169.254.169.254/jwks"},
        {"jwks_uri": "http://127.0.0.1:1/jwks"},
    ],
    ids=str,
)
async def test_an_issuer_that_describes_another_or_other_places_is_not_believed(
    described: dict[str, Any],
) -> None:
    async with issuing() as issuer:
        if described == {"issuer": "SLASH"}:
            described = {"issuer": issuer.url + "/"}
        issuer.description = described
        async with door(issuer, discovers=True) as at:
            assert await at.reason() == "the key is not known"
            assert issuer.asked[KEYS] == 0 and issuer.asked[DISCOVERY] > 0


async def test_a_description_over_https_does_not_lead_to_keys_over_http() -> None:
    from dragoman.security.jwt.jwks import read_endpoints

    described = {"issuer": "https://i.example", "jwks_uri": "http://i.example/jwks"}
    with pytest.raises(ValueError, match="place of keys"):
        read_endpoints(json.dumps(described).encode(), "https://i.example")
    described["jwks_uri"] = "https://i.example/jwks"
    found = read_endpoints(json.dumps(described).encode(), "https://i.example")
    assert found.jwks_uri == "https://i.example/jwks"


async def test_the_address_that_the_operator_named_is_open_and_no_other_private_one() -> None:
    async with issuing() as issuer, issuing() as other:
        issuer.instead[KEYS] = (
            f"HTTP/1.1 302 x\r\nLocation: {other.url}{KEYS}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        async with door(issuer) as at:
            assert await at.reason() == "the key is not known"
            assert not other.asked
        async with door(issuer, allow_private=True) as at:
            assert (await at.admit()).caller.authenticated and other.asked[KEYS] == 1


async def test_a_fetch_that_fails_in_an_unknown_way_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(content: bytes) -> Any:
        raise RuntimeError("unforeseen")

    async with issuing() as issuer:
        with monkeypatch.context() as patch:
            patch.setattr("dragoman.security.jwt.jwks.from_jwks", broken)
            source = RemoteKeys(url=issuer.url + KEYS, clock=(clock := ManualClock()))
            await within(source.start())
        assert not source.current() and "unforeseen" in caplog.text
        await within(_waits(clock))
        clock.move_to(clock.now() + 1000)
        async with asyncio.timeout(60):
            while not source.current():  # noqa: ASYNC110 -- a source has no event
                await asyncio.sleep(0.001)
        await source.stop()


class TestFile:
    """A file of keys that changes under us."""

    def source(self, path: Path) -> tuple[FileKeys, list[float]]:
        moment = [0.0]
        return FileKeys(path, lambda: moment[0]), moment

    def write(self, path: Path, content: str | bytes) -> None:
        beside = path.with_suffix(".tmp")
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)

    async def test_it_is_read_again_when_it_changed(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        self.write(path, json.dumps(jwks("ec")))
        source, moment = self.source(path)
        await source.start()
        old = source.current().refs
        self.write(path, json.dumps(jwks("ec-other")))
        assert source.current().refs == old
        moment[0] = 1.0
        assert source.current().refs and not source.current().refs & old
        assert (await source.renewed("any")).refs == source.current().refs

    async def test_it_is_looked_at_once_a_second(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "keys.json"
        self.write(path, json.dumps(jwks("ec")))
        source, moment = self.source(path)
        await source.start()
        looks: list[object] = []
        honest = os.stat
        monkeypatch.setattr(os, "stat", lambda path: looks.append(path) or honest(path))
        for _ in range(1000):
            source.current()
        assert looks == []
        moment[0] = 1.0
        for _ in range(1000):
            source.current()
        assert len(looks) == 1

    @pytest.mark.parametrize("content", [None, b'{"keys": [', b'{"keys": []}'])
    async def test_one_that_is_gone_or_broken_opens_nothing_until_it_is_whole(
        self, content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "keys.json"
        self.write(path, json.dumps(jwks("ec")))
        source, moment = self.source(path)
        await source.start()
        assert source.current()
        path.unlink() if content is None else self.write(path, content)
        moment[0] = 1.0
        assert not source.current() and "every caller is refused" in caplog.text
        self.write(path, json.dumps(jwks("ec-other")))
        moment[0] = 2.0
        assert source.current()

    async def test_one_that_others_may_change_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        self.write(path, json.dumps(jwks("ec")))
        path.chmod(0o666)
        with pytest.raises(ConfigError, match="others may change it"):
            await self.source(path)[0].start()


def test_what_is_logged_of_a_fetch_has_no_path(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with issuing() as issuer:
            secret = issuer.url + "/jwks?key=HUSH"
            async with door(issuer, jwks_url=secret):
                pass

    caplog.set_level(logging.DEBUG, "dragoman")
    asyncio.run(run())
    assert "were not fetched" in caplog.text and "HUSH" not in caplog.text
