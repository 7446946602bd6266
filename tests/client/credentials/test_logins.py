"""Logins that are kept: for whom they are used, and how they are renewed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from harness.serving import hosting
from harness.waiting import within

from dragoman.client.asgi import InProcess
from dragoman.client.credentials.credentials import Attached, Bearer, Scheme, choose
from dragoman.client.credentials.logins import Login, StoredToken, log_in, login_scheme
from dragoman.client.credentials.oauth import AccessToken
from dragoman.client.credentials.origins import Origins
from dragoman.egress.egress import Egress
from dragoman.egress.targets import Anywhere
from dragoman.errors import ConfigError, CredentialsMissing
from dragoman.model.card import AgentCapabilities, AgentCard
from dragoman.testing.clock import ManualClock
from dragoman.testing.issuer import OPENID, Issuer
from tests.client.credentials.issuers import (
    AGENT,
    CLIENT,
    ISSUER,
    PUBLIC,
    SCHEME,
    TRUSTED,
    Gate,
    Shown,
    token_of,
)


class Kept:
    """A keeper in memory, shared by two that would be processes."""

    def __init__(self, login: Login | None = None) -> None:
        self.login = login
        self.saves: list[Login] = []
        self._lock = asyncio.Lock()

    def load(self, origin: str, scheme: str, issuer: str) -> Login | None:
        return self.login

    def save(self, login: Login) -> None:
        self.login = login
        self.saves.append(login)

    @asynccontextmanager
    async def locked(self, login: Login) -> AsyncIterator[None]:
        async with self._lock:
            yield


async def logged_in(
    issuer: Issuer, http: InProcess, clock: ManualClock, grant: Any = "deviceCode"
) -> Login:
    issuer.device = ("granted",)
    account = PUBLIC if grant == "deviceCode" else CLIENT
    login = asyncio.create_task(
        log_in(
            SCHEME,
            grant,
            account,
            agent=AGENT,
            http=http,
            origins=TRUSTED,
            show=Shown(),
            scopes=("more",),
            clock=clock,
        )
    )
    if grant == "deviceCode":
        await clock.leap()
    return await within(login)


async def test_a_login_is_used_for_its_agent_and_scheme_alone(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    login = await logged_in(issuer, http, clock)
    assert (login.origin, login.scheme, login.issuer) == ("https://agent.example", "oauth", ISSUER)
    assert issuer.scope_of(login.token.access) == "read more"
    stored = StoredToken(login, clock=clock)
    assert await token_of(stored, http) == login.token.access
    assert stored.is_stored
    assert stored.fits(SCHEME)
    assert not stored.fits(Scheme("other", "oauth2"))
    assert stored.serves("https://AGENT.example:443/other")
    for url in ("https://agent.example:8443/", "http://agent.example/", "nowhere"):
        assert not stored.serves(url)
        with pytest.raises(CredentialsMissing, match="goes nowhere else"):
            await stored.attach(SCHEME, Attached(url), http, Origins([AGENT]))


async def test_a_login_is_renewed_with_a_refresh_token_that_is_replaced(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    login = await logged_in(issuer, http, clock)
    kept = Kept(login)
    stored = StoredToken(login, kept, clock=clock)
    for turn in range(1, 4):
        clock.move_to(clock.now() + 3_600_000)
        token = await token_of(stored, http)
        assert issuer.accepts(token)
        assert issuer.scope_of(token) == "read more"
        assert len(kept.saves) == turn
        assert kept.saves[-1].token.access == token
    assert len({item.token.refresh for item in [login, *kept.saves]}) == 4
    assert kept.saves[-1].id == login.id


async def test_a_refresh_token_that_is_not_replaced_is_kept(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    issuer.rotates = False
    login = await logged_in(issuer, http, clock)
    stored = StoredToken(login, clock=clock)
    for _ in range(2):
        clock.move_to(clock.now() + 3_600_000)
        assert issuer.accepts(await token_of(stored, http))
    assert stored.login.token.refresh == login.token.refresh


async def test_a_refused_login_is_renewed_before_its_time(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    login = await logged_in(issuer, http, clock)
    stored = StoredToken(login, clock=clock)
    issuer.revoke(login.token.access)
    assert stored.refused()
    renewed = await token_of(stored, http)
    assert issuer.accepts(renewed)
    assert await token_of(stored, http) == renewed


async def test_two_processes_do_not_use_one_refresh_token_twice(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    login = await logged_in(issuer, http, clock)
    kept = Kept(login)
    clock.move_to(clock.now() + 3_600_000)
    pair = [StoredToken(login, kept, clock=clock) for _ in range(2)]
    tokens = await within(asyncio.gather(*(token_of(stored, http) for stored in pair)))
    assert tokens[0] == tokens[1]
    assert len(kept.saves) == 1


async def test_several_loops_do_not_use_one_refresh_token_twice(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    login = await logged_in(issuer, http, clock)
    clock.move_to(clock.now() + 3_600_000)
    before = len(issuer.asked_for("/token"))
    tokens = await Gate(issuer).tokens(StoredToken(login, clock=clock))
    assert len(set(tokens)) == 1
    assert issuer.accepts(tokens[0])
    assert len(issuer.asked_for("/token")) == before + 1


async def test_a_login_that_cannot_be_renewed_says_to_log_in_again(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    login = await logged_in(issuer, http, clock)
    clock.move_to(clock.now() + 3_600_000)
    await token_of(StoredToken(login, clock=clock), http)
    # Its refresh token was used by the line before.
    with pytest.raises(CredentialsMissing, match="dragoman auth login") as caught:
        await token_of(StoredToken(login, clock=clock), http)
    assert caught.value.facts["error"] == "invalid_grant"


async def test_a_login_by_client_credentials_is_renewed_if_the_secret_is_at_hand(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    login = await logged_in(issuer, http, clock, "clientCredentials")
    assert not login.token.refresh
    without = StoredToken(login, clock=clock)
    assert not without.refused()
    clock.move_to(clock.now() + 3_600_000 - 10_000)
    # It cannot be renewed early, and has not ended yet.
    assert await token_of(without, http) == login.token.access
    clock.move_to(clock.now() + 10_000)
    with pytest.raises(CredentialsMissing, match="has expired"):
        await token_of(without, http)
    having = StoredToken(login, client_secret="secret", clock=clock)
    assert issuer.accepts(await token_of(having, http))


async def test_a_login_that_cannot_be_kept_still_serves_this_run(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    class Full(Kept):
        def save(self, login: Login) -> None:
            raise ConfigError("no space")

    login = await logged_in(issuer, http, clock)
    clock.move_to(clock.now() + 3_600_000)
    assert issuer.accepts(await token_of(StoredToken(login, Full(login), clock=clock), http))


async def test_no_secret_is_shown_when_a_login_is_printed(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    login = await logged_in(issuer, http, clock)
    shown = f"{login!r} {StoredToken(login, client_secret='hunter2')!r} {login.token}"
    for secret in (login.token.access, login.token.refresh, "hunter2"):
        assert secret not in shown


async def test_identities_outlive_a_renewal_and_tell_logins_apart(
    issuer: Issuer, http: InProcess, clock: ManualClock
) -> None:
    first = StoredToken(await logged_in(issuer, http, clock), clock=clock)
    second = StoredToken(await logged_in(issuer, http, clock), clock=clock)
    before = first.identity
    assert before != second.identity
    first.refused()
    await token_of(first, http)
    assert first.identity == before


# What to log in for


def card(*names: str, **security: Any) -> AgentCard:
    return AgentCard(
        "Agent",
        "",
        [],
        "1",
        AgentCapabilities(),
        [],
        [],
        [],
        security_schemes=security,
        security_requirements=[{"schemes": {name: {"list": ["r"]}}} for name in names],
    )


def test_the_scheme_to_log_in_for_is_the_one_with_the_flow() -> None:
    oidc = {"openIdConnectSecurityScheme": {"openIdConnectUrl": ISSUER + OPENID}}
    device = {"oauth2SecurityScheme": {"flows": {"deviceCode": {"tokenUrl": f"{ISSUER}/token"}}}}
    bearer = {"httpAuthSecurityScheme": {"scheme": "bearer"}}
    both = card("device", oidc=oidc, device=device, bearer=bearer)
    chosen = login_scheme(both, "deviceCode")
    assert (chosen.name, chosen.scopes) == ("device", ("r",))
    assert login_scheme(both, "clientCredentials").name == "oidc"
    assert login_scheme(both, "deviceCode", "bearer").name == "bearer"
    with pytest.raises(CredentialsMissing, match="'ghost'"):
        login_scheme(both, "deviceCode", "ghost")
    with pytest.raises(CredentialsMissing, match="no scheme to log in for"):
        login_scheme(card(bearer=bearer), "deviceCode")


def test_an_explicit_token_wins_over_a_stored_login(clock: ManualClock) -> None:
    login = Login(
        "https://agent.example", "o", ISSUER, "c", f"{ISSUER}/token", "deviceCode", AccessToken("t")
    )
    asks = card("o", o={"oauth2SecurityScheme": {"flows": {}}})
    given, stored = Bearer("mine"), StoredToken(login)
    assert [used for _, used in choose(asks, [stored, given], AGENT).attached] == [given]
    assert [used for _, used in choose(asks, [stored], AGENT).attached] == [stored]


# Over a socket


async def test_a_login_is_made_and_renewed_over_a_socket() -> None:
    issuer = Issuer(interval=0.05, device=("pending", "granted"))
    async with hosting(issuer) as url, Egress(policy=Anywhere()) as http:
        login = await within(
            log_in(
                Scheme("b", "bearer"),
                "deviceCode",
                PUBLIC,
                agent=AGENT,
                http=http,
                origins=Origins(),
                show=Shown(),
                issuer=url,
            )
        )
        assert issuer.accepts(login.token.access)
        stored = StoredToken(login)
        assert stored.refused()
        assert issuer.accepts(await within(token_of(stored, http)))
