"""Logins that outlive a run: made once at an issuer, used for one agent, renewed while they can be.

How an issuer is asked is in `oauth`, where logins are kept in `tokens`.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from dragoman.client.credentials.credentials import (
    Attached,
    Credential,
    Scheme,
    fingerprint,
    requirements,
    schemes,
    takes_bearer,
)
from dragoman.client.credentials.oauth import (
    AccessToken,
    ClientAccount,
    Grant,
    IssuerEndpoints,
    Show,
    client_token,
    device_token,
    endpoints,
    refreshed_token,
)
from dragoman.client.credentials.origins import Origins, origin_of
from dragoman.client.credentials.turn_lock import Turns
from dragoman.client.http import Http
from dragoman.errors import ConfigError, CredentialsMissing, Unauthenticated
from dragoman.model.card import AgentCard
from dragoman.model.clock import Clock, SystemClock


class Login(msgspec.Struct, frozen=True, omit_defaults=True):
    """A login at an issuer for one scheme of one agent: what is kept between runs."""

    origin: str
    scheme: str
    issuer: str
    client_id: str
    token_url: str
    grant: str
    token: AccessToken
    scopes: tuple[str, ...] = ()
    # Whether the client's secret goes in the form instead of a header.
    posts_secret: bool = False
    # Random, for the keys of caches: it tells logins apart and outlives a refresh.
    id: str = ""


class Keeper(Protocol):
    """Where logins outlive a process; `tokens.TokenStore` is one."""

    def load(self, origin: str, scheme: str, issuer: str) -> Login | None:
        """Return a login, or None."""
        ...

    def save(self, login: Login) -> None:
        """Keep a login in place of the one for the same agent, scheme and issuer.

        Raises `ConfigError` where it cannot.
        """
        ...

    def locked(self, login: Login) -> AbstractAsyncContextManager[None]:
        """Keep other processes from renewing it meanwhile: a refresh token may work only once."""
        ...


@dataclass(slots=True, repr=False, eq=False)
class StoredToken(Credential):
    """The token of an earlier login, for the agent it was made for; renewed while it can be."""

    login: Login
    keeper: Keeper | None = None
    # Not kept with the login. Only clients that have one need it, and only to renew.
    client_secret: str = ""
    clock: Clock = field(default_factory=SystemClock)
    _is_refused: bool = field(init=False, default=False)
    _renewing: Turns = field(init=False, default_factory=Turns)

    def __repr__(self) -> str:
        return f"StoredToken(login={self.login!r})"

    def fits(self, scheme: Scheme) -> bool:
        return takes_bearer(scheme) and scheme.name == self.login.scheme

    def serves(self, url: str) -> bool:
        """Say whether an address is of the agent it was made for."""
        try:
            return origin_of(url) == self.login.origin
        except ConfigError:
            return False

    async def attach(self, scheme: Scheme, to: Attached, http: Http, origins: Origins) -> None:
        if not self.serves(to.url):
            raise CredentialsMissing(
                f"The stored token is for {self.login.origin} and goes nowhere else",
                origin=self.login.origin,
            )
        async with self._renewing.take():
            if self._is_refused or not self.login.token.lasts(self.clock.now()):
                await self._renew(http)
        to.headers["authorization"] = f"Bearer {self.login.token.access}"

    def refused(self) -> bool:
        self._is_refused = self._can_renew or self.keeper is not None
        return self._is_refused

    @property
    def identity(self) -> str:
        return fingerprint("stored", self.login.id, self.login.origin, self.login.scheme)

    @property
    def is_stored(self) -> bool:
        return True

    @property
    def _can_renew(self) -> bool:
        if self.login.grant == "clientCredentials" and self.client_secret:
            return True
        return bool(self.login.token.refresh)

    async def _renew(self, http: Http) -> None:
        holding = self.keeper.locked(self.login) if self.keeper else nullcontext()
        async with holding:
            if await self._has_been_renewed():
                return
            expires_at = self.login.token.expires_at
            if not self._can_renew:
                # The last half minute counts when nothing better is to be had.
                if not self._is_refused and expires_at and self.clock.now() < expires_at:
                    return
                raise self._over("has expired")
            try:
                self.login = await _renewed(self.login, self.client_secret, http, self.clock)
            except Unauthenticated as refusal:
                raise self._over("cannot be renewed", **refusal.facts) from None
            self._is_refused = False
            if self.keeper:
                # The token serves this run even if it cannot be kept for the next one.
                with suppress(ConfigError):
                    await asyncio.to_thread(self.keeper.save, self.login)

    async def _has_been_renewed(self) -> bool:
        """Take over what another process got meanwhile."""
        if self.keeper is None:
            return False
        key = (self.login.origin, self.login.scheme, self.login.issuer)
        login = await asyncio.to_thread(self.keeper.load, *key)
        if login is None or login.token == self.login.token:
            return False
        self.login = login
        self._is_refused = False
        return login.token.lasts(self.clock.now())

    def _over(self, what: str, **facts: str) -> CredentialsMissing:
        return CredentialsMissing(
            f"The login at {self.login.issuer} for {self.login.origin} {what}: log in again with "
            "`dragoman auth login`",
            schemes=self.login.scheme,
            **facts,
        )


def login_scheme(card: AgentCard, grant: Grant, name: str = "") -> Scheme:
    """Return the scheme of a card to log in for, with the scopes its requirements ask for.

    Raises `CredentialsMissing` where the card has none of that name, or none to log in for.
    """
    known = schemes(card)
    if name:
        usable = [known[name]] if name in known and takes_bearer(known[name]) else []
    else:
        # What describes the flow itself comes before what only says where to look.
        logins = [item for item in known.values() if item.kind in ("oauth2", "openIdConnect")]
        usable = sorted(logins, key=lambda item: grant not in item.flows)
    if not usable:
        raise CredentialsMissing(
            f"The card declares no scheme {name!r} to log in for"
            if name
            else "The card declares no scheme to log in for",
            schemes=",".join(known),
        )
    scheme = usable[0]
    scopes = next((item[scheme.name] for item in requirements(card) if scheme.name in item), ())
    return msgspec.structs.replace(scheme, scopes=scopes)


async def log_in(
    scheme: Scheme,
    grant: Grant,
    account: ClientAccount,
    *,
    agent: str,
    http: Http,
    origins: Origins,
    show: Show,
    issuer: str = "",
    scopes: Sequence[str] = (),
    clock: Clock | None = None,
) -> Login:
    """Return a login for an agent, given by the address its requests go to."""
    clock = clock or SystemClock()
    where = await endpoints(scheme, grant, http, origins, issuer=issuer)
    wanted = tuple(dict.fromkeys((*scheme.scopes, *scopes)))
    if grant == "deviceCode":
        token = await device_token(account, where, http, show=show, scopes=wanted, clock=clock)
    else:
        token = await client_token(account, where, http, scopes=wanted, clock=clock)
    return Login(
        origin=origin_of(agent),
        scheme=scheme.name,
        issuer=where.issuer,
        client_id=account.client_id,
        token_url=where.refresh_url or where.token_url,
        grant=grant,
        token=token,
        scopes=wanted,
        posts_secret=where.posts_secret,
        id=secrets.token_hex(16),
    )


async def _renewed(login: Login, secret: str, http: Http, clock: Clock) -> Login:
    """Return a login with a token got for its refresh token, which may be replaced by it."""
    # Its addresses were checked when it was made, and only the user can write it.
    where = IssuerEndpoints(login.issuer, login.token_url, posts_secret=login.posts_secret)
    account = ClientAccount(login.client_id, secret)
    refresh = login.token.refresh
    if refresh:
        token = await refreshed_token(account, where, refresh, http, clock=clock)
    else:
        token = await client_token(account, where, http, scopes=login.scopes, clock=clock)
    return msgspec.structs.replace(login, token=token)
