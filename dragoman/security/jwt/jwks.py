"""The keys of an issuer, from where it publishes them or where it says that they are.

A key set is fetched again every few minutes and whenever a token names a key that it does not
have; callers cannot make that happen often. While an issuer is down its last keys serve for a day,
and then every token is refused.
"""

import asyncio
import contextlib
import logging
import re
import time
from typing import Any, cast

import msgspec

from dragoman.egress.answers import EgressResponse
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError
from dragoman.egress.targets import NotCanonical, Target, read_target
from dragoman.errors import ConfigError
from dragoman.model.clock import Clock
from dragoman.security.jwt.form import Object
from dragoman.security.jwt.verification_keys import EMPTY, KeyRing, check_extra, from_jwks

logger = logging.getLogger("dragoman")

DISCOVERY = "/.well-known/openid-configuration"
LARGEST_SET = 64 * 1024
FETCH_WITHIN = 10.0
MOST_REDIRECTS = 3
# Seconds. A key that its issuer withdrew serves no longer than the longest interval; one that a
# token names before we know it is asked for at once, but not again for a while.
INTERVAL, SHORTEST_INTERVAL = 300, 30
ASK_AGAIN = 30
FIRST_RETRY, LAST_RETRY = 1, 60
DISCOVER_AGAIN = 3600
STALE_FOR = 24 * 3600
# How long a start waits for the first set; tokens are refused until it is there.
START_WITHIN = 3.0

_MAX_AGE = re.compile(r"(?:^|[\s,])max-age=\"?(\d{1,9})", re.IGNORECASE)
# A name that an issuer might give a key. Others are not worth the question.
_LIKELY_KID = re.compile(r"(?!.*\.\.)[A-Za-z0-9._~:/#+=@-]{1,256}")


class SteadyClock:
    """Milliseconds of a clock that is never set."""

    def now(self) -> int:
        """Return the milliseconds."""
        return time.monotonic_ns() // 1_000_000

    async def wait_until(self, at: int) -> None:
        """Return when that time has come."""
        await asyncio.sleep(max(0.0, (at - self.now()) / 1000))


class JwksEndpoints(msgspec.Struct, frozen=True):
    """What an issuer says of itself, as far as it matters here."""

    jwks_uri: str
    token_url: str = ""
    authorization_url: str = ""
    device_url: str = ""
    grants: frozenset[str] = frozenset()
    # Whether a client's secret goes into the form, and not into a header.
    posts_secret: bool = False


class RemoteKeys:
    """An issuer's key set, at a URL or where the issuer says it is."""

    def __init__(
        self,
        *,
        url: str = "",
        issuer: str = "",
        allow_private: bool = False,
        egress: Egress | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._url = url
        self._issuer = issuer
        self._target = configured_target(url or issuer, allow_private)
        # Where the operator says the keys are, we go, whatever address that has.
        self._allow, self._allow_private = allowed_entry(self._target), allow_private
        self._given_egress = egress
        self._egress: Egress | None = egress
        self._clock = clock or SteadyClock()
        self.endpoints = JwksEndpoints(url)
        self._discovered_at: int | None = None
        self._ring = EMPTY
        self._fetched_at: int | None = None
        self._interval = INTERVAL
        self._may_ask_at: int | None = None
        self._fetching: asyncio.Task[bool] | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to fetch. An issuer that does not answer does not keep the server from starting."""
        check_extra()
        if self._egress is None:
            self._egress = Egress(allow=[self._allow], allow_private=self._allow_private)
        first = self._fetch()
        self._keeping = asyncio.create_task(self._keep(first))
        await asyncio.wait({first}, timeout=START_WITHIN)

    async def stop(self) -> None:
        """End fetching and close the connection."""
        tasks: list[asyncio.Task[Any]] = [
            task for task in (self._keeping, self._fetching) if task is not None
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._keeping = self._fetching = None
        if self._egress is not None and self._given_egress is None:
            await self._egress.close()
            self._egress = None

    def current(self) -> KeyRing:
        """Return the keys of the last set, none once that is too old to be believed."""
        if self._fetched_at is None or self._clock.now() - self._fetched_at > STALE_FOR * 1000:
            return EMPTY
        return self._ring

    async def renewed(self, kid: str) -> KeyRing:
        """Return the keys after another fetch, or without one if there was one for such a reason
        a moment ago: invented key ids cost an issuer nothing."""
        if kid and not _LIKELY_KID.fullmatch(kid):
            return self.current()
        running = self._fetching
        if running is None or running.done():
            now = self._clock.now()
            if self._may_ask_at is not None and now < self._may_ask_at:
                return self.current()
            self._may_ask_at = now + ASK_AGAIN * 1000
            running = self._fetch()
        # Not awaited itself: a caller that hangs up must not end what others wait for.
        await asyncio.wait({running})
        return self.current()

    def _fetch(self) -> "asyncio.Task[bool]":
        """Return the fetch under way, or begin one: there is never a second."""
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetched())
        return self._fetching

    async def _keep(self, fetching: "asyncio.Task[bool]") -> None:
        retry = FIRST_RETRY
        while True:
            await asyncio.wait({fetching})
            if fetching.result():
                pause, retry = self._interval, FIRST_RETRY
            else:
                pause, retry = retry, min(retry * 2, LAST_RETRY)
            await self._clock.wait_until(self._clock.now() + pause * 1000)
            fetching = self._fetch()

    async def _fetched(self) -> bool:
        try:
            answer = await fetch(self._dialler(), await self._where())
            ring = from_jwks(answer.body)
        except (EgressError, ValueError) as error:
            reason = error.reason if isinstance(error, EgressError) else str(error)
            logger.warning("jwt: the keys of %s were not fetched: %s", self._target.origin, reason)
            # Where they are may be what changed.
            self._discovered_at = None
            return False
        except Exception:
            # Whatever it was: the next try must come.
            logger.exception("jwt: the keys of %s were not fetched", self._target.origin)
            return False
        if ring.refs != self._ring.refs:
            logger.info("jwt: %s has %d keys", self._target.origin, len(ring))
        if not ring:
            logger.warning("jwt: %s has no key of use; tokens are refused", self._target.origin)
        self._ring, self._fetched_at = ring, self._clock.now()
        self._interval = _interval(answer)
        return True

    async def _where(self) -> str:
        """Return where the key set is; raises `ValueError` for an issuer that is another."""
        if self._url:
            return self._url
        now = self._clock.now()
        if self._discovered_at is None or now - self._discovered_at > DISCOVER_AGAIN * 1000:
            answer = await fetch(self._dialler(), self._issuer.rstrip("/") + DISCOVERY)
            self.endpoints = read_endpoints(answer.body, self._issuer)
            self._discovered_at = now
        return self.endpoints.jwks_uri

    def _dialler(self) -> Egress:
        assert self._egress is not None, "not started"
        return self._egress


async def fetch(egress: Egress, url: str) -> EgressResponse:
    """Return a document of an issuer; raises `EgressError`, and `ValueError` for one that is not
    there or too long."""
    answer = await egress.get(
        url,
        headers={"Accept": "application/json"},
        timeout=FETCH_WITHIN,
        max_answer=LARGEST_SET,
        redirects=MOST_REDIRECTS,
    )
    if answer.status != 200:
        raise ValueError(f"the answer has the status {answer.status}")
    if answer.is_cut:
        raise ValueError(f"the answer is longer than {LARGEST_SET} bytes")
    return answer


def allowed_entry(target: Target) -> str:
    """Return the entry that has an egress client dial a target, whatever address it has."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{host}:{target.port}"


def configured_target(url: str, allow_private: bool) -> Target:
    """Return where an issuer is; raises `ConfigError` for a place that cannot be trusted."""
    try:
        target = read_target(url)
    except NotCanonical as error:
        raise ConfigError(f"jwt: {url!r} is no address to get keys from: {error}") from None
    is_local = target.host == "localhost" or (
        target.address is not None and target.address.is_loopback
    )
    if target.scheme != "https" and not is_local and not allow_private:
        raise ConfigError(
            f"jwt: keys are fetched over https and not from {target.origin}: who is in between "
            "could change them"
        )
    return target


def read_endpoints(content: bytes, issuer: str) -> JwksEndpoints:
    """Return what an issuer says of itself; raises `ValueError` if that is of another."""
    document = msgspec.json.decode(content)
    if not isinstance(document, dict):
        raise ValueError("the description of the issuer is no object")
    fields = cast(Object, document)
    if fields.get("issuer") != issuer:
        raise ValueError("the description is of another issuer")
    jwks_uri = _url(fields, "jwks_uri")
    if not jwks_uri or (issuer.startswith("https:") and not jwks_uri.startswith("https:")):
        raise ValueError("the description names no place of keys that can be trusted")
    grants = fields.get("grant_types_supported")
    named = cast("list[Any]", grants) if isinstance(grants, list) else ["authorization_code"]
    methods: Any = fields.get("token_endpoint_auth_methods_supported")
    posts_secret = (
        isinstance(methods, list)
        and "client_secret_post" in methods
        and "client_secret_basic" not in methods
    )
    return JwksEndpoints(
        jwks_uri,
        _url(fields, "token_endpoint"),
        _url(fields, "authorization_endpoint"),
        _url(fields, "device_authorization_endpoint"),
        frozenset(name for name in named if isinstance(name, str)),
        posts_secret,
    )


def _url(fields: Object, name: str) -> str:
    value = fields.get(name, "")
    with contextlib.suppress(NotCanonical):
        return read_target(value).url if isinstance(value, str) and value else ""
    return ""


def _interval(answer: EgressResponse) -> int:
    """Return in how many seconds the set is fetched again, as its issuer wishes within limits."""
    found = _MAX_AGE.search(answer.headers.get("cache-control", ""))
    wished = int(found[1]) if found else INTERVAL
    return min(max(wished, SHORTEST_INTERVAL), INTERVAL)
