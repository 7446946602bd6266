"""Tokens from an issuer, in process; time is moved by hand, and no test waits for it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from harness.serving import hosting
from harness.waiting import within

from dragoman.client.asgi import InProcess
from dragoman.client.credentials import oauth
from dragoman.client.credentials.credentials import OAuthFlow, Scheme
from dragoman.client.credentials.oauth import (
    AccessToken,
    ClientAccount,
    ClientCredentials,
    device_token,
    endpoints,
)
from dragoman.client.credentials.origins import Origins
from dragoman.client.http import HttpExchange
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressFailed
from dragoman.egress.targets import Anywhere
from dragoman.errors import ConfigError, CredentialsMissing, Unauthenticated, Unreachable
from dragoman.testing.clock import ManualClock
from dragoman.testing.issuer import METADATA, OPENID, Issuer
from tests.client.credentials.issuers import (
    AGENT,
    CLIENT,
    FLOWS,
    ISSUER,
    OIDC,
    PUBLIC,
    SCHEME,
    TRUSTED,
    Gate,
    Shown,
    client,
    token_of,
)


def instead(issuer: Issuer, path: str, status: int, value: Any, **headers: str) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    issuer.instead[path].append((status, headers, body))


# Client credentials


async def test_a_token_is_fetched_with_the_scopes_of_both_sides_and_kept(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    credential = client(clock, scopes=("write", "read"), extra={"audience": "a"})
    token = await token_of(credential, http)
    assert issuer.accepts(token)
    assert issuer.scope_of(token) == "read write"
    assert await token_of(credential, http) == token
    [asked] = issuer.asked_for("/token")
    assert asked.form == {
        "grant_type": "client_credentials",
        "scope": "read write",
        "audience": "a",
    }
    assert asked.headers["authorization"].startswith("Basic ")


async def test_id_and_secret_are_encoded_before_they_are_joined(clock: ManualClock) -> None:
    issuer = Issuer(clients={"a:b c": "ü%&:"}, clock=clock)
    http = InProcess(issuer)
    credential = ClientCredentials("a:b c", "ü%&:", clock=clock)
    assert issuer.accepts(await token_of(credential, http))
    await http.close()


async def test_a_token_is_renewed_half_a_minute_before_it_ends(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    credential = client(clock)
    first = await token_of(credential, http)
    clock.move_to(clock.now() + 3_600_000 - 30_001)
    assert await token_of(credential, http) == first
    clock.move_to(clock.now() + 1)
    second = await token_of(credential, http)
    assert second != first
    assert issuer.accepts(second)


async def test_a_token_without_an_end_is_kept_until_it_is_refused(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    credential = client(clock)
    assert not credential.refused()
    instead(issuer, "/token", 200, {"access_token": "endless", "token_type": "bearer"})
    assert await token_of(credential, http) == "endless"
    clock.move_to(clock.now() + 10**12)
    assert await token_of(credential, http) == "endless"
    assert credential.refused()
    assert await token_of(credential, http) != "endless"


async def test_many_callers_share_one_fetch(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    credential = client(clock)
    tokens = await within(asyncio.gather(*(token_of(credential, http) for _ in range(20))))
    assert len(set(tokens)) == 1
    assert len(issuer.asked_for("/token")) == 1


async def test_callers_on_several_loops_share_one_fetch(issuer: Issuer, clock: ManualClock) -> None:
    tokens = await Gate(issuer).tokens(client(clock))
    assert (len(tokens), len(set(tokens))) == (3, 1)
    assert len(issuer.asked_for("/token")) == 1


async def test_tokens_of_different_scopes_are_kept_apart(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    credential = client(clock)
    other = Scheme("oauth", "oauth2", flows=FLOWS, scopes=("write",))
    assert issuer.scope_of(await token_of(credential, http)) == "read"
    assert issuer.scope_of(await token_of(credential, http, other)) == "write"


async def test_a_caller_that_gives_up_does_not_keep_the_others_waiting(clock: ManualClock) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    issuer = Issuer(clock=clock)

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            begun.set()
            await release.wait()
        await issuer(scope, receive, send)

    http = InProcess(slow)
    credential = client(clock)
    first = asyncio.create_task(token_of(credential, http))
    await within(begun.wait())
    second = asyncio.create_task(token_of(credential, http))
    first.cancel()
    release.set()
    assert issuer.accepts(await within(second))
    await http.close()


@pytest.mark.parametrize(
    ("scheme", "more", "fits"),
    [
        (SCHEME, {}, True),
        (OIDC, {}, True),
        (Scheme("b", "bearer"), {}, False),
        (Scheme("b", "bearer"), {"issuer": ISSUER}, True),
        (Scheme("b", "basic"), {"issuer": ISSUER}, False),
        (Scheme("o", "oauth2", flows={"implicit": OAuthFlow()}), {}, False),
        (SCHEME, {"scheme": "other"}, False),
    ],
)
def test_client_credentials_fit_where_a_token_can_be_got(
    scheme: Scheme, more: dict[str, str], fits: bool
) -> None:
    assert ClientCredentials("c", "s", **more).fits(scheme) is fits


async def test_a_wrong_secret_is_said_with_its_code_and_without_the_secret(
    http: InProcess, clock: ManualClock
) -> None:
    credential = ClientCredentials("client", "hunter2", clock=clock)
    with pytest.raises(Unauthenticated) as caught:
        await token_of(credential, http)
    assert caught.value.facts == {"error": "invalid_client", "issuer": ISSUER}
    assert "hunter2" not in f"{caught.value!r} {credential!r} {ClientAccount('c', 'hunter2')!r}"
    # There is no token to replace, so no second try either.
    assert not credential.refused()


async def test_an_issuer_that_repeats_the_secret_is_not_repeated(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    for said in ("wrong: hunter2", "bad\x1b[2J"):
        instead(issuer, "/token", 400, {"error": "invalid_client", "error_description": said})
        with pytest.raises(Unauthenticated) as caught:
            await token_of(ClientCredentials("client", "hunter2", clock=clock), http)
        assert caught.value.facts == {"error": "invalid_client", "issuer": ISSUER}
    instead(issuer, "/token", 400, {"error": "x", "error_description": "unknown tenant"})
    with pytest.raises(Unauthenticated, match="x: unknown tenant"):
        await token_of(client(clock), http)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b"", Unreachable),
        (200, b"not json", Unreachable),
        (200, b"[]", Unreachable),
        (200, b'{"access_token": 7}', Unauthenticated),
        (200, b'{"access_token": ""}', Unauthenticated),
        (200, b'{"access_token": "a\\nb", "token_type": "bearer"}', Unauthenticated),
        (200, b'{"access_token": "a", "token_type": "mac"}', Unauthenticated),
        (200, b'{"error": "bad_verification_code"}', Unauthenticated),
        (400, b'{"error": "invalid_scope"}', Unauthenticated),
        (400, b'{"error": "sp\\u0007oof"}', Unreachable),
        (401, b"", Unauthenticated),
        (403, b"<html>", Unauthenticated),
        (302, b"", Unreachable),
        (429, b"", Unreachable),
        (500, b'{"error": "server_error"}', Unreachable),
        (503, b"", Unreachable),
        (200, b'{"x": "' + b"y" * 70_000 + b'"}', Unreachable),
        (200, b"[" * 60_000, Unreachable),
        (200, b'{"access_token": "a"}' + b" " * 70_000, Unreachable),
    ],
)
async def test_whatever_an_issuer_answers_is_an_error_of_our_tree(
    issuer: Issuer,
    http: InProcess,
    clock: ManualClock,
    status: int,
    body: bytes,
    error: type[Exception],
) -> None:
    instead(issuer, "/token", status, body, location=f"{ISSUER}/elsewhere")
    with pytest.raises(error):
        await token_of(client(clock), http)
    assert [asked.path for asked in issuer.requests] == ["/token"]


@pytest.mark.parametrize(
    ("lasts", "expires_in"),
    [
        ("60", 60),
        (60.5, 60.5),
        (-1, None),
        ("soon", None),
        (None, None),
        ([], None),
        (1e300, 3.2e8),
    ],
)
async def test_the_end_of_a_token_is_read_however_it_is_written(
    issuer: Issuer, http: InProcess, clock: ManualClock, lasts: Any, expires_in: float | None
) -> None:
    instead(issuer, "/token", 200, {"access_token": "a", "expires_in": lasts})
    where = await endpoints(SCHEME, "clientCredentials", http, TRUSTED)
    token = await oauth.client_token(CLIENT, where, http, clock=clock)
    if expires_in is None:
        assert token.expires_at is None
    else:
        assert token.expires_at is not None
        assert token.expires_at - clock.now() <= expires_in * 1000


class Failing:
    """A network where nobody answers."""

    identity = ""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[HttpExchange]:
        if self.error:
            raise self.error
        await asyncio.Event().wait()
        raise AssertionError
        yield

    def open(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes | None = None
    ) -> AbstractAsyncContextManager[HttpExchange]:
        return self._open()

    async def close(self) -> None:
        pass


async def test_an_issuer_that_cannot_be_reached_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    with pytest.raises(Unreachable, match="cannot be reached: refused"):
        await token_of(client(clock), Failing(EgressFailed("refused")))
    monkeypatch.setattr(oauth, "PATIENCE", 0.01)
    with pytest.raises(Unreachable, match=r"did not answer in 0\.01 s"):
        await within(token_of(client(clock), Failing()))


def test_a_client_is_known_by_all_that_makes_its_tokens(clock: ManualClock) -> None:
    ours = client(clock).identity
    assert ours == client(clock).identity != client(clock, scopes=("x",)).identity


def test_a_client_that_is_none_is_refused() -> None:
    for pair in (("", "s"), ("a\n", "s"), ("a", "s\r\n")):
        with pytest.raises(ConfigError):
            ClientCredentials(*pair)


# Where the secret goes


@pytest.mark.parametrize("grant", ["clientCredentials", "deviceCode"])
async def test_a_secret_does_not_go_to_an_issuer_that_only_the_card_names(
    issuer: Issuer, http: InProcess, grant: Any
) -> None:
    for scheme in (SCHEME, OIDC):
        with pytest.raises(CredentialsMissing, match=r"--trust-origin https://issuer\.example"):
            await endpoints(scheme, grant, http, Origins([AGENT]))
    assert issuer.requests == []


@pytest.mark.parametrize("place", ["token_url", "device_url", "refresh_url"])
async def test_each_address_of_a_flow_is_checked(http: InProcess, place: str) -> None:
    urls = {"token_url": f"{ISSUER}/token", "device_url": f"{ISSUER}/device"}
    flow = OAuthFlow(**(urls | {place: "https://evil.example/"}))
    scheme = Scheme("s", "oauth2", flows={"deviceCode": flow})
    with pytest.raises(CredentialsMissing, match=r"evil\.example"):
        await endpoints(scheme, "deviceCode", http, TRUSTED)


async def test_an_address_that_is_none_is_refused_as_one(http: InProcess) -> None:
    for url in ("javascript:alert(1)", "https://a@b/", "//issuer.example/token"):
        scheme = Scheme("s", "oauth2", flows={"clientCredentials": OAuthFlow(url)})
        with pytest.raises(CredentialsMissing):
            await endpoints(scheme, "clientCredentials", http, TRUSTED)


async def test_the_issuer_the_user_names_needs_no_other_permission(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    credential = client(clock, issuer=ISSUER)
    assert issuer.accepts(await token_of(credential, http, OIDC, Origins([AGENT])))
    by_url = client(clock, token_url=f"{ISSUER}/token")
    assert issuer.accepts(await token_of(by_url, http, Scheme("b", "bearer"), Origins([AGENT])))


async def test_a_description_that_leads_to_another_origin_is_not_followed(
    issuer: Issuer, http: InProcess
) -> None:
    evil = {"issuer": ISSUER, "token_endpoint": "https://evil.example/token"}
    instead(issuer, OPENID, 200, evil)
    with pytest.raises(CredentialsMissing, match=r"evil\.example"):
        await endpoints(OIDC, "clientCredentials", http, TRUSTED)


async def test_an_issuer_that_is_no_url_is_refused_before_anything_is_asked(
    issuer: Issuer, http: InProcess
) -> None:
    for given in ({"issuer": "issuer.example"}, {"token_url": "/token"}):
        with pytest.raises(ConfigError, match="not an address"):
            await endpoints(SCHEME, "clientCredentials", http, TRUSTED, **given)
    assert issuer.requests == []


# Discovery


@pytest.mark.parametrize("prefix", ["", "/tenant/1"])
@pytest.mark.parametrize("place", [OPENID, METADATA])
async def test_an_issuer_is_found_in_either_place(
    clock: ManualClock, prefix: str, place: str
) -> None:
    issuer = Issuer(clock=clock, prefix=prefix, describes=[place])
    http = InProcess(issuer)
    for written in (ISSUER + prefix, f"{ISSUER}{prefix}/"):
        bare = Scheme("b", "bearer")
        where = await endpoints(bare, "deviceCode", http, Origins(), issuer=written)
        assert where.issuer == ISSUER + prefix
        assert where.token_url == f"{ISSUER}{prefix}/token"
        assert where.device_url == f"{ISSUER}{prefix}/device"
    await http.close()


async def test_the_card_s_own_description_is_used_when_there_is_no_flow(http: InProcess) -> None:
    for place in (OPENID, METADATA):
        scheme = Scheme("s", "oauth2", discovery_url=ISSUER + place)
        where = await endpoints(scheme, "clientCredentials", http, TRUSTED)
        assert where.token_url == f"{ISSUER}/token"


@pytest.mark.parametrize("said", ["https://evil.example", ISSUER + "/other", "", None, 7])
async def test_a_description_of_another_issuer_is_refused(
    issuer: Issuer, http: InProcess, said: Any
) -> None:
    value = {"issuer": said, "token_endpoint": f"{ISSUER}/token"}
    for more in ({}, {"issuer": ISSUER}):
        instead(issuer, OPENID, 200, value)
        with pytest.raises(Unauthenticated) as caught:
            await endpoints(OIDC, "clientCredentials", http, TRUSTED, **more)
        assert caught.value.facts["error"] == "invalid_issuer"


async def test_an_issuer_that_fails_to_describe_itself_is_not_guessed_at(
    issuer: Issuer, http: InProcess
) -> None:
    for status, value in ((500, {}), (200, b"html"), (302, {})):
        instead(issuer, OPENID, status, value)
        with pytest.raises(Unreachable):
            await endpoints(SCHEME, "clientCredentials", http, TRUSTED, issuer=ISSUER)


async def test_an_issuer_without_a_description_is_asked_where_the_card_says(
    issuer: Issuer, http: InProcess
) -> None:
    issuer.describes = ()
    where = await endpoints(SCHEME, "clientCredentials", http, Origins([AGENT]), issuer=ISSUER)
    assert where.token_url == f"{ISSUER}/token"
    with pytest.raises(CredentialsMissing, match="--issuer"):
        await endpoints(OIDC, "clientCredentials", http, TRUSTED)
    elsewhere = Scheme("s", "oauth2", flows={"clientCredentials": OAuthFlow("https://x.example/t")})
    with pytest.raises(CredentialsMissing, match=r"x\.example"):
        await endpoints(elsewhere, "clientCredentials", http, Origins([AGENT]), issuer=ISSUER)


async def test_the_secret_goes_in_the_form_where_the_issuer_takes_it_nowhere_else(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    issuer.methods = ("client_secret_post",)
    assert issuer.accepts(await token_of(client(clock), http, OIDC))
    [asked] = issuer.asked_for("/token")
    assert asked.form["client_secret"] == "secret"
    assert "authorization" not in asked.headers


# Device code


async def polling(
    http: Any, clock: ManualClock, account: ClientAccount = PUBLIC, shown: Shown | None = None
) -> AccessToken:
    where = await endpoints(SCHEME, "deviceCode", http, TRUSTED)
    show = shown or Shown()
    return await device_token(account, where, http, show=show, scopes=("read",), clock=clock)


async def leaps(clock: ManualClock, task: "asyncio.Task[AccessToken]") -> list[float]:
    """Move time whenever the login waits for it; return how long it waited, in seconds."""
    waits: list[float] = []
    while True:
        before = clock.now()
        leap = asyncio.create_task(clock.leap())
        await within(asyncio.wait({leap, task}, return_when=asyncio.FIRST_COMPLETED))
        if leap.done():
            waits.append((leap.result() - before) / 1000)
        if task.done():
            leap.cancel()
            return waits


async def test_a_person_is_shown_the_code_and_grants_the_token(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    shown = Shown()
    task = asyncio.create_task(polling(http, clock, shown=shown))
    assert await leaps(clock, task) == [5, 5]
    token = task.result()
    assert issuer.accepts(token.access)
    assert token.refresh
    [(user_code, address, complete)] = shown.codes
    assert address == f"{ISSUER}/activate"
    assert complete == f"{address}?user_code={user_code}"
    [device] = issuer.asked_for("/device")
    assert device.form == {"client_id": "public", "scope": "read"}


async def test_slow_down_adds_five_seconds_for_good(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    issuer.interval = 2
    issuer.device = ("pending", "slow_down", "pending", "slow_down", "granted")
    task = asyncio.create_task(polling(http, clock))
    assert await leaps(clock, task) == [2, 2, 7, 7, 12]
    assert issuer.accepts(task.result().access)


@pytest.mark.parametrize(
    ("step", "error"), [("denied", "access_denied"), ("expired", "expired_token")]
)
async def test_a_refusal_ends_the_polling(
    issuer: Issuer, http: InProcess, clock: ManualClock, step: Any, error: str
) -> None:
    issuer.device = ("pending", step)
    task = asyncio.create_task(polling(http, clock))
    assert await leaps(clock, task) == [5, 5]
    with pytest.raises(Unauthenticated) as caught:
        task.result()
    assert caught.value.facts["error"] == error


async def test_a_code_that_nobody_uses_expires_with_us_too(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    issuer.device, issuer.code_lasts = ("pending",), 12
    task = asyncio.create_task(polling(http, clock))
    # The third poll would be after the end.
    assert await leaps(clock, task) == [5, 5]
    with pytest.raises(Unauthenticated) as caught:
        task.result()
    assert caught.value.facts == {"error": "expired_token"}
    assert len(issuer.asked_for("/token")) == 2


async def test_a_visit_to_the_page_grants_what_waits_for_it(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    issuer.device = ("wait",)
    shown = Shown()
    task = asyncio.create_task(polling(http, clock, shown=shown))
    await clock.leap()
    async with http.open("GET", shown.codes[0][2], headers={}) as page:
        assert page.status == 200
    await leaps(clock, task)
    assert issuer.accepts(task.result().access)


async def test_a_confidential_client_shows_its_secret_on_every_poll(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    task = asyncio.create_task(polling(http, clock, CLIENT))
    await leaps(clock, task)
    assert issuer.accepts(task.result().access)
    asked = [*issuer.asked_for("/device"), *issuer.asked_for("/token")]
    assert [item.headers["authorization"][:6] for item in asked] == ["Basic "] * 3


async def test_an_issuer_that_is_silent_for_a_moment_is_asked_less_often(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    instead(issuer, "/token", 503, b"")
    instead(issuer, "/token", 503, b"")
    task = asyncio.create_task(polling(http, clock))
    assert await leaps(clock, task) == [5, 10, 20, 20]
    assert issuer.accepts(task.result().access)


async def test_only_silence_without_a_word_in_between_counts(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    for status in (503, 400, 503, 503):
        instead(issuer, "/token", status, {"error": "authorization_pending"})
    issuer.device = ("granted",)
    task = asyncio.create_task(polling(http, clock))
    assert await leaps(clock, task) == [5, 10, 10, 20, 40]
    assert issuer.accepts(task.result().access)


async def test_an_issuer_that_stays_silent_is_given_up(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    for _ in range(3):
        instead(issuer, "/token", 503, b"")
    task = asyncio.create_task(polling(http, clock))
    assert await leaps(clock, task) == [5, 10, 20]
    with pytest.raises(Unreachable):
        task.result()


@pytest.mark.parametrize(
    "change",
    [
        {"device_code": None},
        {"user_code": "A\x1b[2J"},
        {"user_code": ""},
        {"verification_uri": "https://x.example/\r\n"},
        {"verification_uri": None},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri_complete": "file:///etc/passwd"},
        {"verification_uri_complete": "https://x.example/\x00"},
        {"verification_uri": "x" * 3000},
    ],
)
async def test_a_code_that_cannot_be_shown_safely_is_refused(
    issuer: Issuer, http: InProcess, clock: ManualClock, change: dict[str, Any]
) -> None:
    usual = {"device_code": "d", "user_code": "U", "verification_uri": "https://x.example"}
    instead(issuer, "/device", 200, usual | change)
    shown = Shown()
    with pytest.raises(Unauthenticated, match="no usable code"):
        await within(polling(http, clock, shown=shown))
    assert shown.codes == []


@pytest.mark.parametrize(
    ("said", "waited"),
    [({}, 5), ({"interval": 0}, 0.05), ({"interval": "x"}, 5), ({"interval": 1e9}, 300)],
)
async def test_the_interval_has_a_default_and_bounds(
    issuer: Issuer, http: InProcess, clock: ManualClock, said: dict[str, Any], waited: float
) -> None:
    usual = {"device_code": "d", "user_code": "U", "verification_url": "https://x.example"}
    instead(issuer, "/device", 200, usual | said)
    instead(issuer, "/token", 200, {"access_token": "a"})
    task = asyncio.create_task(polling(http, clock))
    assert await leaps(clock, task) == [waited]
    assert task.result().access == "a"


# Over a socket


async def test_a_token_is_fetched_over_a_socket() -> None:
    issuer = Issuer()
    async with hosting(issuer) as url, Egress(policy=Anywhere()) as http:
        credential = ClientCredentials("client", "secret", issuer=url)
        assert issuer.accepts(await within(token_of(credential, http, OIDC, Origins())))
    async with Egress(policy=Anywhere()) as http:
        gone = ClientCredentials("client", "secret", issuer=url)
        with pytest.raises(Unreachable, match="cannot be reached"):
            await within(token_of(gone, http, OIDC))
