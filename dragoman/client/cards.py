"""Agent cards by reference: fetched, read leniently, and kept as long as HTTP allows.

A private cache after RFC 9111: a document is kept per URL, version and identity, so that `Vary` has
nothing left to say and nobody sees what another was shown. It is asked for again with its
validators once it is stale, and a stale one is never used because the agent is away.

On disk there is only what anybody is shown: nothing of an identity, nothing fetched with headers of
the caller's, nothing marked `no-store`. A file that cannot be read is as good as none.
"""

import asyncio
import hashlib
import os
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import urldefrag, urljoin

import msgspec

from dragoman.client.http import Http, read_all
from dragoman.client.references import (
    CARD_PATH,
    OLDER_CARD_PATH,
    Reference,
    find,
    in_catalog,
)
from dragoman.dialects import card_check
from dragoman.dialects import cards as dialect
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
from dragoman.model.push import is_sendable
from dragoman.security.egress import MOST_REDIRECTS, REDIRECTS, EgressError
from dragoman.security.signatures import KeySet, key_urls
from dragoman.security.targets import NotCanonical, Target, is_unseen, read_target
from dragoman.transports import json_text

LARGEST_CARD = 256 * 1024
LARGEST_KEYS = 64 * 1024
# A catalog lists many agents.
LARGEST_CATALOG = 4 * 1024 * 1024
# However long a peer says that its card stays as it is: addresses and keys do change.
LONGEST_FRESH = 24 * 3600.0
MOST_KEPT = 64
MOST_FILES = 256
LONGEST_VALIDATOR = 1024
LONGEST_SHOWN = 200
NOT_HERE = frozenset({404, 405, 410})
# The address of an agent that says nothing of it, as those that say nothing have it.
DEFAULT_ADDRESS = "/a2a"
_ONE_FILE = 2 * LARGEST_CARD


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


class _Kept(msgspec.Struct, frozen=True):
    """A document in the cache."""

    asked: str  # the URL that was asked for
    version: str
    url: str  # the one that answered
    body: bytes
    etag: str
    modified: str
    lifetime: float  # seconds
    stored_at: int  # milliseconds since the epoch
    fresh_until: int

    def is_fresh(self, now: int) -> bool:
        # A clock that was set back proves nothing.
        return self.stored_at <= now < self.fresh_until

    def validators(self) -> dict[str, str]:
        found = {"if-none-match": self.etag, "if-modified-since": self.modified}
        return {name: value for name, value in found.items() if value}


class _Asked(msgspec.Struct, frozen=True):
    """What to ask for: the caller's headers go to one origin and no other."""

    url: str
    version: str
    identity: str
    headers: Mapping[str, str]
    origin: str
    most: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.url, self.version, self.identity

    @property
    def is_public(self) -> bool:
        return not self.identity and not self.headers


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
        largest: int = LARGEST_CARD,
    ) -> None:
        """`ttl` is how long a card is good that says nothing of it; `folder` keeps what everybody
        is shown from run to run; `catalog` is where an `@name` is looked up."""
        self._ttl = ttl
        self._folder = folder
        self._clock = clock or SystemClock()
        self._catalog = catalog
        self._timeout = timeout
        self._largest = largest
        self._kept: OrderedDict[tuple[str, str, str], _Kept] = OrderedDict()

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
                asked = _Asked(
                    url=found.url,
                    # Servers take an empty one for 0.3.
                    version=version or "1.0",
                    identity=identity,
                    headers={name.lower(): value for name, value in (headers or {}).items()},
                    origin=found.origin,
                    most=self._largest,
                )
                if reference.kind == "catalog":
                    return await self._from_catalog(http, asked, found, fresh)
                return await self._card(http, asked, found.origin, fresh, is_host=found.is_host)
        except TimeoutError:
            raise TimedOut(
                f"The agent card did not come within {self._timeout:g} s", url=reference.url
            ) from None

    def forget(self) -> None:
        """Keep nothing any longer, on disk neither."""
        self._kept.clear()
        if self._folder is not None:
            for path in _files(self._folder):
                with suppress(OSError):
                    path.unlink()

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
            asked = _Asked(url, "1.0", "", {}, "", LARGEST_KEYS)
            with suppress(CallFailed, Unauthenticated, TimeoutError, ConfigError):
                async with asyncio.timeout(self._timeout):
                    document, _ = await self._document(http, asked, fresh)
                found = found | KeySet.decode(document)
        return found

    async def _from_catalog(
        self, http: Http, asked: _Asked, found: Reference, fresh: bool
    ) -> Fetched:
        # What a catalog shows to whoever asks is enough; its own answer is no card's.
        of_catalog = msgspec.structs.replace(
            asked, headers={}, identity="", most=max(LARGEST_CATALOG, asked.most)
        )
        document, url = await self._document(http, of_catalog, fresh)
        try:
            entry = find(document, found.name)
        except CardNotFound:
            if fresh:
                raise
            # It may have been added since.
            document, url = await self._document(http, of_catalog, True)
            entry = find(document, found.name)
        if entry.card is not None:
            return read(entry.card, url=url, origin=found.origin)
        try:
            target = _joined(read_target(url), entry.url)
        except NotCanonical as error:
            raise CardInvalid(f"The catalog has no usable URL of the card: {error}") from None
        is_host = target.path == "/"
        of_card = msgspec.structs.replace(
            asked, url=target.url.removesuffix("/") + CARD_PATH if is_host else target.url
        )
        return await self._card(http, of_card, found.origin, fresh, is_host=is_host)

    async def _card(
        self, http: Http, asked: _Asked, origin: str, fresh: bool, *, is_host: bool
    ) -> Fetched:
        raw, url = await self._document(http, asked, fresh, is_host=is_host)
        try:
            return read(raw, url=url, origin=origin)
        except CardInvalid:
            # Whoever mends it wants to see that at once.
            await self._drop(asked)
            raise

    async def _document(
        self, http: Http, asked: _Asked, fresh: bool, *, is_host: bool = False
    ) -> tuple[Any, str]:
        """Return a JSON document, from the cache if it may be, and the URL it is from."""
        kept = await self._known(asked)
        now = self._clock.now()
        if kept is None or fresh or not kept.is_fresh(now):
            kept = await self._asked_for(http, asked, kept, fresh, is_host)
        try:
            return json_text.parse(kept.body), kept.url
        except ParseFailed as error:
            await self._drop(asked)
            raise CardInvalid(f"This is not JSON: {error.public}", url=kept.url) from None

    async def _asked_for(
        self, http: Http, asked: _Asked, kept: _Kept | None, fresh: bool, is_host: bool
    ) -> _Kept:
        answer = await self._ask(http, asked, asked.url, kept, fresh)
        if answer.status in NOT_HERE and is_host:
            older = asked.url.removesuffix(CARD_PATH) + OLDER_CARD_PATH
            second = await self._ask(http, asked, older, kept, fresh)
            # What is missing is what was looked for first.
            answer = answer if second.status in NOT_HERE else second
        if answer.status == 304 and kept is not None and answer.url == kept.url:
            body, lifetime = kept.body, kept.lifetime
        elif 200 <= answer.status < 300:
            body, lifetime, kept = answer.body, self._ttl, None
        else:
            # A peer in trouble may still have what we know of it.
            if answer.status < 500:
                await self._drop(asked)
            raise _refusal(answer)
        now = self._clock.now()
        lifetime = _lifetime(answer.headers, lifetime, now)
        document = _Kept(
            asked=asked.url,
            version=asked.version,
            url=answer.url,
            body=body,
            etag=_validator(answer.headers, "etag") or (kept.etag if kept else ""),
            modified=_validator(answer.headers, "last-modified") or (kept.modified if kept else ""),
            lifetime=lifetime,
            stored_at=now,
            fresh_until=now + int((lifetime - _age(answer.headers)) * 1000),
        )
        if "no-store" in _directives(answer.headers):
            await self._drop(asked)
        else:
            await self._keep(asked, document)
        return document

    async def _ask(
        self, http: Http, asked: _Asked, url: str, kept: _Kept | None, fresh: bool
    ) -> _Answer:
        """Return what is at a URL, after at most so many redirects."""
        try:
            target = read_target(url)
            headers: Mapping[str, str] = asked.headers
            for _ in range(MOST_REDIRECTS + 1):
                if _origin(target) != asked.origin:
                    # Once away they stay away: another origin may have chosen the way back.
                    headers = {}
                answer = await _once(http, asked, target, headers, kept, fresh)
                if answer.status not in REDIRECTS or "location" not in answer.headers:
                    return answer
                following = _joined(target, answer.headers["location"])
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
                body = file.read(self._largest + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise CardNotFound(
                f"The file of the card could not be read: {reason or 'there is none'}",
                path=path,
            ) from None
        if len(body) > self._largest:
            raise _too_large(self._largest)
        try:
            return json_text.parse(body)
        except ParseFailed as error:
            raise CardInvalid(f"This is not JSON: {error.public}", path=path) from None

    async def _known(self, asked: _Asked) -> _Kept | None:
        if asked.key in self._kept:
            self._kept.move_to_end(asked.key)
            return self._kept[asked.key]
        if self._folder is None or not asked.is_public:
            return None
        return await asyncio.to_thread(_load, self._folder / _file_name(asked), asked)

    async def _keep(self, asked: _Asked, document: _Kept) -> None:
        self._kept[asked.key] = document
        self._kept.move_to_end(asked.key)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        if self._folder is not None and asked.is_public and len(document.body) <= LARGEST_CARD:
            await asyncio.to_thread(_save, self._folder, _file_name(asked), document)

    async def _drop(self, asked: _Asked) -> None:
        self._kept.pop(asked.key, None)
        if self._folder is not None and asked.is_public:
            await asyncio.to_thread(_remove, self._folder / _file_name(asked))


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
            f"This is not a usable agent card: {_shown(error.public)}",
            field=_shown(error.field),
            url=url,
            findings="; ".join(_shown(str(one)) for one in card_check.findings(value)),
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
        whole = urldefrag(url).url
        read_target(whole)
        # As it is written: a peer may know its own name by the letter.
        return whole
    if not base:
        raise NotCanonical("the card does not say where its agent is, and has no address itself")
    if not url and not is_main:
        raise NotCanonical("an interface has no address")
    return _joined(read_target(base), url or DEFAULT_ADDRESS).url


def _joined(base: Target, location: str) -> Target:
    """Return where a URL leads that may be relative; raises `NotCanonical`."""
    # Joining drops some characters without a word, so they are looked for before.
    if "\\" in location or any(is_unseen(character) for character in location):
        raise NotCanonical("the URL has a space, a control or a backslash")
    try:
        target = read_target(urldefrag(urljoin(base.url, location)).url)
    except NotCanonical:
        raise
    except ValueError:
        raise NotCanonical("the URL leads nowhere") from None
    return target


def _origin(target: Target) -> str:
    return target.url.removesuffix(target.path)


async def _once(
    http: Http,
    asked: _Asked,
    target: Target,
    headers: Mapping[str, str],
    kept: _Kept | None,
    fresh: bool,
) -> _Answer:
    sent = {**headers, "accept": "application/json", "a2a-version": asked.version}
    if fresh:
        sent["cache-control"] = "no-cache"
    # Validators belong to the URL that gave them.
    if kept is not None and kept.url == target.url:
        sent |= kept.validators()
    async with http.open("GET", target.url, headers=sent) as exchange:
        if not 200 <= exchange.status < 300:
            return _Answer(exchange.status, exchange.headers, target.url)
        body, is_cut = await read_all(exchange, asked.most)
        if is_cut:
            raise _too_large(asked.most, url=target.url)
        return _Answer(exchange.status, exchange.headers, target.url, body)


def _shown(text: str) -> str:
    """Return a text that can be shown: short, and without what nobody would see in it."""
    short = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
    return "".join(ascii(c)[1:-1] if is_unseen(c) and c != " " else c for c in short)


def _refusal(answer: _Answer) -> A2AError:
    facts = {"url": answer.url, "status": str(answer.status)}
    if answer.status in (401, 403):
        if challenge := answer.headers.get("www-authenticate", ""):
            facts["wwwAuthenticate"] = challenge
        error: A2AError = Unauthenticated("The agent card is not shown to everybody", **facts)
    elif answer.status == 304:
        return CardInvalid("The agent says that its card has not changed, and shows none", **facts)
    elif answer.status in REDIRECTS:
        error = Unreachable("The agent card is elsewhere, and nobody says where", **facts)
    elif answer.status == 429 or answer.status >= 500:
        error = Unreachable(f"The agent card could not be fetched: HTTP {answer.status}", **facts)
    else:
        error = CardNotFound(f"There is no agent card here: HTTP {answer.status}", **facts)
    error.code = answer.status
    return error


def _unreachable(url: str, reason: str) -> Unreachable:
    return Unreachable("The agent card could not be fetched", url=url, reason=reason)


def _too_large(most: int, **facts: str) -> CardInvalid:
    return CardInvalid(f"This is larger than {most} bytes, as no agent card is", **facts)


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise CardInvalid("This is not an agent card: it is no JSON object")
    return cast("dict[str, Any]", value)


def _directives(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the directives of Cache-Control; of two alike the stricter counts."""
    found: dict[str, str] = {}
    for item in headers.get("cache-control", "").split(","):
        name, _, value = item.strip().partition("=")
        name, value = name.strip().lower(), value.strip().strip('"')
        if name == "max-age" and name in found:
            value = min(value, found[name], key=lambda text: _seconds(text) or 0)
        if name:
            found[name] = value
    return found


def _seconds(text: str) -> int | None:
    # A number too long to be meant is as long as any.
    return int(text[:10]) if text.isascii() and text.isdigit() else None


def _lifetime(headers: Mapping[str, str], default: float, now: int) -> float:
    """Return for how many seconds an answer is fresh from when it was made."""
    directives = _directives(headers)
    if "no-cache" in directives or headers.get("vary", "").strip() == "*":
        return 0.0
    if "max-age" in directives:
        # What cannot be understood is stale.
        return min(float(_seconds(directives["max-age"]) or 0), LONGEST_FRESH)
    if "expires" in headers:
        expires = _instant(headers["expires"])
        made = _instant(headers.get("date", ""))
        since = made if made is not None else now / 1000
        return 0.0 if expires is None else min(max(expires - since, 0.0), LONGEST_FRESH)
    return default


def _age(headers: Mapping[str, str]) -> float:
    return float(_seconds(headers.get("age", "").strip()) or 0)


def _instant(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _validator(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    return value if len(value) <= LONGEST_VALIDATOR and is_sendable(value) else ""


def _file_name(asked: _Asked) -> str:
    digest = hashlib.sha256(msgspec.json.encode([asked.url, asked.version])).hexdigest()
    return f"{digest}.json"


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix == ".json"]
    except OSError:
        return []


def _is_ours(folder: Path) -> bool:
    """Say whether nobody else writes there: a card that was slipped in says where to send what."""
    if os.name == "nt":
        return True
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def _load(path: Path, asked: _Asked) -> _Kept | None:
    try:
        if not _is_ours(path.parent):
            return None
        with path.open("rb") as file:
            kept = msgspec.json.decode(file.read(_ONE_FILE), type=_Kept)
        if (kept.asked, kept.version) != (asked.url, asked.version):
            return None
        read_target(kept.url)
    # Whatever is in it: a file that somebody damaged is asked for again.
    except (OSError, ValueError, RecursionError):
        return None
    if len(kept.body) > asked.most or not (is_sendable(kept.etag) and is_sendable(kept.modified)):
        return None
    return kept


def _save(folder: Path, name: str, document: _Kept) -> None:
    """Write a file at once or not at all; a disk that will not take it is no reason to fail."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(folder):
            return
        # Made for its owner alone.
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(document))
            os.replace(temporary, folder / name)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        paths = _files(folder)
        if len(paths) > MOST_FILES:
            paths.sort(key=lambda path: path.stat().st_mtime)
            for path in paths[:-MOST_FILES]:
                path.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
