"""Agent cards by reference: fetched, read leniently, and kept as long as HTTP allows.

A card is asked for again with its validators once it is stale, that of an agent on this machine
each time, and a stale one is never used because the agent is away. How documents are kept is in
`cache`, what a reference stands for in `references`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from dragoman.client.cards.cache import LARGEST_CARD, Cache, CachedDocument, CacheKey, may_keep
from dragoman.client.cards.references import (
    CARD_PATH,
    OLDER_CARD_PATH,
    Reference,
    find,
    in_catalog,
    without_fragment,
)
from dragoman.client.credentials.origins import is_loopback
from dragoman.client.http import Http, read_all, wish
from dragoman.dialects import card_check
from dragoman.dialects import cards as dialect
from dragoman.egress.egress import MOST_REDIRECTS, REDIRECTS
from dragoman.egress.errors import EgressError
from dragoman.egress.targets import (
    NotCanonical,
    Target,
    is_unseen,
    read_location,
    read_target,
)
from dragoman.errors import (
    A2AError,
    CallFailed,
    CardInvalid,
    CardNotFound,
    ConfigError,
    InvalidParams,
    ParseFailed,
    TimedOut,
    Unauthenticated,
    Unreachable,
)
from dragoman.model.card import HTTP_JSON, JSONRPC, AgentCard, AgentInterface
from dragoman.model.clock import Clock, SystemClock
from dragoman.security.card_keys import KeySet
from dragoman.security.card_signatures import key_urls
from dragoman.transports import json_text

LARGEST_KEYS = 64 * 1024
# A catalog lists many agents.
LARGEST_CATALOG = 4 * 1024 * 1024
LONGEST_SHOWN = 200
# A server that knows no GET says 501, or 405.
NOT_HERE = frozenset({404, 405, 410, 501})
# The address of an agent that says nothing of it, as those that say nothing have it.
DEFAULT_ADDRESS = "/a2a"


class Fetched(msgspec.Struct, frozen=True):
    """A card, and where it came from."""

    # Every interface that it has is one that can be dialled: its URL is absolute.
    card: AgentCard
    # As it was written.
    raw: dict[str, Any]
    # Where it was found in the end; "" for a file or an object.
    url: str
    # Of what the user named, which a redirect or a catalog may have led away from; "" for a file.
    origin: str
    # Whether it was at hand from before: the agent's may be another by now.
    is_kept: bool = False


class _CardRequest(msgspec.Struct, frozen=True):
    """What to ask for: the caller's headers go to one origin and no other."""

    url: str
    version: str
    identity: str
    headers: Mapping[str, str]
    origin: str
    most: int

    @property
    def is_local(self) -> bool:
        """Whether the agent is on this machine: one that is being written has another card at each
        start, and asking it costs nothing."""
        try:
            return is_loopback(read_target(self.url))
        except NotCanonical:
            return False

    @property
    def key(self) -> CacheKey:
        is_public = not self.identity and not self.headers and not self.is_local
        return CacheKey(self.url, self.version, self.identity, is_public=is_public)


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    url: str
    body: bytes = b""


class Cards:
    """Agent cards by reference, kept as long as HTTP allows."""

    def __init__(
        self,
        *,
        ttl: float = 300.0,
        folder: Path | None = None,
        clock: Clock | None = None,
        catalog: str = "",
        timeout: float = 10.0,
    ) -> None:
        """`ttl` is how long a card is good that says nothing of it; `folder` keeps what everybody
        is shown from run to run; `catalog` is where an `@name` is looked up."""
        self._ttl = ttl
        self._clock = clock or SystemClock()
        self._catalog = catalog
        self._timeout = timeout
        self._cache = Cache(folder)

    async def fetch(
        self,
        http: Http,
        reference: Reference,
        *,
        version: str = "1.0",
        identity: str = "",
        headers: Mapping[str, str] | None = None,
        fresh: bool = False,
    ) -> Fetched:
        """Return the card a reference leads to, asked for anew if `fresh`.

        `headers` may hold credentials and go to the origin the user named alone; `identity` tells
        whose they are, without being secret itself. Raises `CardNotFound`, `CardInvalid`,
        `Unreachable`, `Unauthenticated` and `TimedOut`, and nothing else.
        """
        if reference.kind == "file":
            return read(await asyncio.to_thread(self._read_file, reference.path))
        try:
            async with asyncio.timeout(self._timeout):
                if reference.kind == "catalog":
                    found = in_catalog(reference, self._catalog)
                else:
                    found = reference
                card_request = _CardRequest(
                    url=found.url,
                    # Servers take an empty one for 0.3.
                    version=version or "1.0",
                    identity=_known_by(http, identity),
                    headers={name.lower(): value for name, value in (headers or {}).items()},
                    origin=found.origin,
                    most=LARGEST_CARD,
                )
                if reference.kind == "catalog":
                    return await self._from_catalog(http, card_request, found, fresh)
                return await self._card(
                    http, card_request, found.origin, fresh, is_host=found.is_host
                )
        except TimeoutError:
            raise TimedOut(
                f"The agent card did not come within {self._timeout:g} s", url=reference.url
            ) from None

    async def keys(
        self,
        http: Http,
        raw: Mapping[str, Any],
        origins: Sequence[str],
        *,
        fresh: bool = False,
    ) -> KeySet:
        """Return the keys that a card's signatures point to, where that is at an allowed origin.

        What cannot be had is left out: whether the rest is enough is the verdict's business.
        """
        found = KeySet([])
        for url in key_urls(raw, origins):
            card_request = _CardRequest(url, "1.0", _known_by(http), {}, "", LARGEST_KEYS)
            with suppress(CallFailed, Unauthenticated, TimeoutError, ConfigError):
                async with asyncio.timeout(self._timeout):
                    document, *_ = await self._document(http, card_request, fresh)
                found = found | KeySet.decode(document)
        return found

    async def keys_at(self, http: Http, url: str) -> KeySet:
        """Return the keys of a document that the user names; raises like `fetch`, and
        `ConfigError` for a document without keys."""
        card_request = _CardRequest(url, "1.0", _known_by(http), {}, "", LARGEST_KEYS)
        try:
            async with asyncio.timeout(self._timeout):
                # Asked for anew: a key that was taken back is not to be trusted a while longer.
                document, *_ = await self._document(http, card_request, True)
        except TimeoutError:
            raise TimedOut(f"The keys did not come within {self._timeout:g} s", url=url) from None
        return KeySet.decode(document)

    async def _from_catalog(
        self, http: Http, card_request: _CardRequest, found: Reference, fresh: bool
    ) -> Fetched:
        # What a catalog shows without credentials is enough; its own answer is not a card's.
        of_catalog = msgspec.structs.replace(
            card_request,
            headers={},
            identity=_known_by(http),
            most=max(LARGEST_CATALOG, card_request.most),
        )
        document, url, is_kept = await self._document(http, of_catalog, fresh)
        try:
            entry = find(document, found.name)
        except CardNotFound:
            if fresh:
                raise
            # It may have been added since.
            document, url, is_kept = await self._document(http, of_catalog, True)
            entry = find(document, found.name)
        if entry.card is not None:
            fetched = read(entry.card, url=url, origin=found.origin)
            return msgspec.structs.replace(fetched, is_kept=is_kept)
        try:
            target = read_location(read_target(url), entry.url)
        except NotCanonical as error:
            raise CardInvalid(f"The catalog has no usable URL of the card: {error}") from None
        is_host = target.path == "/"
        of_card = msgspec.structs.replace(
            card_request, url=target.url.removesuffix("/") + CARD_PATH if is_host else target.url
        )
        fetched = await self._card(http, of_card, found.origin, fresh, is_host=is_host)
        return msgspec.structs.replace(fetched, is_kept=is_kept or fetched.is_kept)

    async def _card(
        self, http: Http, card_request: _CardRequest, origin: str, fresh: bool, *, is_host: bool
    ) -> Fetched:
        raw, url, is_kept = await self._document(http, card_request, fresh, is_host=is_host)
        try:
            fetched = read(raw, url=url, origin=origin)
        except CardInvalid:
            # After a repair the card must be visible at once.
            await self._cache.drop(card_request.key)
            raise
        return msgspec.structs.replace(fetched, is_kept=is_kept)

    async def _document(
        self, http: Http, card_request: _CardRequest, fresh: bool, *, is_host: bool = False
    ) -> tuple[Any, str, bool]:
        """Return a JSON document, from the cache if it may be; the URL it is from; and whether
        no request was made."""
        cached = await self._cache.load(card_request.key, card_request.most)
        now = self._clock.now()
        is_kept = (
            cached is not None and not fresh and cached.is_fresh(now) and not card_request.is_local
        )
        if cached is None or not is_kept:
            cached = await self._asked_for(http, card_request, cached, fresh, is_host)
        try:
            return json_text.parse(cached.body), cached.url, is_kept
        except ParseFailed as error:
            await self._cache.drop(card_request.key)
            raise CardInvalid(f"This is not JSON: {error.public}", url=cached.url) from None

    async def _asked_for(
        self,
        http: Http,
        card_request: _CardRequest,
        cached: CachedDocument | None,
        fresh: bool,
        is_host: bool,
    ) -> CachedDocument:
        answer = await self._ask(http, card_request, card_request.url, cached, fresh)
        if answer.status in NOT_HERE and is_host:
            older = card_request.url.removesuffix(CARD_PATH) + OLDER_CARD_PATH
            second = await self._ask(http, card_request, older, cached, fresh)
            # What is missing is what was looked for first.
            answer = answer if second.status in NOT_HERE else second
        if 200 <= answer.status < 300:
            cached = CachedDocument(
                card_request.url, card_request.version, answer.url, answer.body, self._ttl
            )
        elif answer.status != 304 or cached is None or answer.url != cached.url:
            # A peer in trouble may still have what we know of it.
            if answer.status < 500 or answer.status in NOT_HERE:
                await self._cache.drop(card_request.key)
            raise _refusal(answer)
        document = cached.confirmed(answer.headers, self._clock.now())
        if may_keep(answer.headers):
            await self._cache.save(card_request.key, document)
        else:
            await self._cache.drop(card_request.key)
        return document

    async def _ask(
        self,
        http: Http,
        card_request: _CardRequest,
        url: str,
        cached: CachedDocument | None,
        fresh: bool,
    ) -> _Answer:
        """Return what is at a URL, after at most so many redirects."""
        try:
            target = read_target(url)
            headers: Mapping[str, str] = card_request.headers
            for _ in range(MOST_REDIRECTS + 1):
                if target.origin != card_request.origin:
                    # Once away they stay away: another origin may have chosen the way back.
                    headers = {}
                answer = await _once(http, card_request, target, headers, cached, fresh)
                if answer.status not in REDIRECTS or "location" not in answer.headers:
                    return answer
                following = read_location(target, answer.headers["location"])
                if target.scheme == "https" and following.scheme != "https":
                    raise NotCanonical("the redirect leads from https to http")
                target = following
        except NotCanonical as error:
            raise _unreachable(url, str(error)) from None
        except EgressError as error:
            raise _unreachable(url, error.reason) from None
        raise _unreachable(url, f"more than {MOST_REDIRECTS} redirects")

    def _read_file(self, path: Path | None) -> Any:
        if path is None:
            raise CardNotFound
        try:
            with path.open("rb") as file:
                body = file.read(LARGEST_CARD + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise CardNotFound(
                f"The card {path.name} could not be read: {reason or 'there is no such file'}",
                path=path,
            ) from None
        if len(body) > LARGEST_CARD:
            raise _too_large(LARGEST_CARD)
        try:
            return json_text.parse(body)
        except ParseFailed as error:
            raise CardInvalid(f"This is not JSON: {error.public}", path=path) from None


def read(raw: Any, *, url: str = "", origin: str = "") -> Fetched:
    """Return a card that is at hand, of any version; raises `CardInvalid`.

    Without a URL, the card of a file or an object has to say itself where its agent is.
    """
    value = _object(raw)
    try:
        card = dialect.decode(value)
    except InvalidParams as error:
        # A name in the path may be the peer's own, of any length and with any character.
        raise CardInvalid(
            f"This is not a usable agent card: {printable(error.public)}",
            field=printable(error.field),
            url=url,
            findings="; ".join(printable(str(one)) for one in card_check.findings(value)),
        ) from None
    except RecursionError:
        raise CardInvalid("This is not a usable agent card: it is nested too deep") from None
    usable: list[AgentInterface] = []
    reason = "has none"
    for index, interface in enumerate(card.supported_interfaces):
        try:
            address = _address(interface, url, is_main=index == 0)
        except NotCanonical as error:
            reason = str(error)
        else:
            usable.append(msgspec.structs.replace(interface, url=address))
    if not usable:
        field = "supportedInterfaces" if "supportedInterfaces" in value else "url"
        raise CardInvalid(
            f"This is not a usable agent card: {field}: {reason}", field=field, url=url
        )
    card = msgspec.structs.replace(card, supported_interfaces=usable)
    return Fetched(card=card, raw=value, url=url, origin=origin)


def _address(interface: AgentInterface, base: str, *, is_main: bool) -> str:
    """Return the absolute URL of an interface; raises `NotCanonical` if it has none."""
    url = interface.url.strip()
    if interface.protocol_binding not in (JSONRPC, HTTP_JSON):
        if not url:
            raise NotCanonical("an interface has no address")
        # What an address is, another binding knows: gRPC has them without a scheme.
        return url
    if url.lower().startswith(("https://", "http://")):
        whole = without_fragment(url)
        read_target(whole)
        # As it is written: a peer may know its own name by the letter.
        return whole
    if not base:
        raise NotCanonical("the card does not say where its agent is, and has no address itself")
    if not url and not is_main:
        raise NotCanonical("an interface has no address")
    return read_location(read_target(base), url or DEFAULT_ADDRESS).url


async def _once(
    http: Http,
    card_request: _CardRequest,
    target: Target,
    headers: Mapping[str, str],
    cached: CachedDocument | None,
    fresh: bool,
) -> _Answer:
    sent = {**headers, "accept": "application/json", "a2a-version": card_request.version}
    if fresh:
        sent["cache-control"] = "no-cache"
    # Validators belong to the URL that gave them.
    if cached is not None and cached.url == target.url:
        sent |= cached.validators()
    async with http.open("GET", target.url, headers=sent) as exchange:
        if not 200 <= exchange.status < 300:
            return _Answer(exchange.status, exchange.headers, target.url)
        body, is_cut = await read_all(exchange, card_request.most)
        if is_cut:
            raise _too_large(card_request.most, url=target.url)
        return _Answer(exchange.status, exchange.headers, target.url, body)


def printable(text: str) -> str:
    """Return a text that can be shown: short, and without invisible characters."""
    short = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
    return "".join(ascii(c)[1:-1] if is_unseen(c) and c != " " else c for c in short)


def _refusal(answer: _Answer) -> A2AError:
    facts = {"url": answer.url, "status": str(answer.status), **wish(answer.headers)}
    if answer.status in (401, 403):
        if challenge := answer.headers.get("www-authenticate", ""):
            facts["wwwAuthenticate"] = challenge
        error: A2AError = Unauthenticated("The agent card is not shown to everybody", **facts)
    elif answer.status == 304:
        return CardInvalid("The agent says that its card has not changed, and shows none", **facts)
    elif answer.status in REDIRECTS:
        error = Unreachable("The agent card is elsewhere; the answer does not say where", **facts)
    elif answer.status not in NOT_HERE and (answer.status == 429 or answer.status >= 500):
        error = Unreachable(f"The agent card could not be fetched: HTTP {answer.status}", **facts)
    else:
        error = CardNotFound(f"There is no agent card here: HTTP {answer.status}", **facts)
    error.code = answer.status
    return error


def _known_by(http: Http, identity: str = "") -> str:
    """Return whom an answer is for: what HTTP shows of us counts besides what we add."""
    return "-".join(one for one in (http.identity, identity) if one)


def _unreachable(url: str, reason: str) -> Unreachable:
    return Unreachable(
        f"The agent card could not be fetched from {_host(url)}: {printable(reason)}",
        url=url,
        reason=reason,
    )


def _host(url: str) -> str:
    """Return what may be shown of an address: a user, a path or a query may be a secret."""
    try:
        return printable(urlsplit(url).netloc.rpartition("@")[2])
    except ValueError:
        return "an address that is none"


def _too_large(most: int, **facts: str) -> CardInvalid:
    return CardInvalid(f"This is larger than {most} bytes, as no agent card is", **facts)


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise CardInvalid("This is not an agent card: it is no JSON object")
    return cast("dict[str, Any]", value)
