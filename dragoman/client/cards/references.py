"""What a user may write to name an agent, and where its card is.

A host stands for the card at its well-known path, any other URL for itself, a path for a file, and
`@name` for an entry of a catalog. Reading a reference touches the disk to see whether a file is
there, and never the network.

A catalog is a JSON document with entries, as a list or under `entries` or `agents`, there also as
an object from name to entry. An entry has a name under `identifier`, `id`, `name` or `displayName`,
and either a card (`card`, `agentCard`, `data`, `inline`) or the URL of one (`cardUrl`,
`agentCardUrl`, `url`, `href`); an entry that is itself a card will do, and so will a text in place
of an entry: the URL. That covers the AI Catalog, which Agentic Resource Discovery builds on,
and the lists that registries hand out. Entries whose `mediaType` is of something else are skipped.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote, urlsplit

import msgspec

from dragoman.client.credentials.origins import is_loopback
from dragoman.dialects.cards import CARD_PATH
from dragoman.egress.targets import NotCanonical, read_target
from dragoman.errors import CardInvalid, CardNotFound

# Where agents before 0.3 have it.
OLDER_CARD_PATH = "/.well-known/agent.json"
CATALOG_PATH = "/.well-known/ai-catalog.json"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
_PATH_STARTS = ("/", "./", "../", "~", ".\\", "..\\")
_ALIKE = ("identifier", "id", "name", "displayName")
_INLINE = ("card", "agentCard", "data", "inline")
_LINKS = ("cardUrl", "agentCardUrl", "url", "href")
# A card has an address of its own under `url`, which is not where the card is.
_OF_CARDS = ("supportedInterfaces", "skills", "capabilities", "protocolVersion")


class Reference(msgspec.Struct, frozen=True):
    """Where a card is to be had."""

    kind: Literal["url", "file", "catalog"]
    # Of the card, or of the catalog that has it; "" for a file and for a catalog yet unknown.
    url: str = ""
    path: Path | None = None
    # Of what the user named: scheme://host[:port]; "" for a file.
    origin: str = ""
    # Of the entry in the catalog; "" for the only one.
    name: str = ""
    # The user named the host alone, so an older path may be tried as well.
    is_host: bool = False


class CatalogEntry(msgspec.Struct, frozen=True):
    """What a catalog has under a name: a card, or the URL of one as it is written there."""

    card: dict[str, Any] | None = None
    url: str = ""


def parse(ref: str | Path) -> Reference:
    """Return what a reference stands for; raises `CardNotFound` if it can stand for nothing."""
    if isinstance(ref, Path):
        return Reference("file", path=_home(ref))
    text = ref.strip()
    if not text:
        raise CardNotFound("The reference is empty", hint=_HINT)
    if text.startswith("@"):
        if len(text) == 1:
            raise CardNotFound("There is no name after the @", hint=_HINT)
        return Reference("catalog", name=text[1:])
    if text.startswith(_PATH_STARTS):
        return Reference("file", path=_home(Path(text)))
    found = _SCHEME.match(text)
    scheme = found[0].lower() if found else ""
    if scheme in ("https", "http"):
        return _from_url(text)
    if scheme == "file":
        return _from_file_url(text)
    if scheme in ("registry+https", "registry+http"):
        return _from_registry(text.partition("+")[2])
    if scheme in ("catalog+https", "catalog+http"):
        document, _, name = text.partition("+")[2].partition("#")
        url, origin = _canonical(document)
        return Reference("catalog", url=_catalog(url), origin=origin, name=unquote(name))
    if scheme:
        raise CardNotFound(f"{scheme} is no scheme an agent card is read with", hint=_HINT)
    # A name that ends like a file is one, missing or not: no host is called so.
    if _is_file(text) or text.lower().endswith(".json"):
        return Reference("file", path=Path(text))
    return _from_url(with_scheme(without_fragment(text)))


def with_scheme(address: str) -> str:
    """Return the URL of an address, which may lack its scheme: http here, https elsewhere."""
    if _SCHEME.match(address):
        return address
    return f"{'http' if _is_here(address) else 'https'}://{address}"


def in_catalog(reference: Reference, catalog: str) -> Reference:
    """Return a reference to an entry with the catalog it is in: the one given, unless it has its
    own. Raises `CardNotFound` if there is none."""
    if reference.url:
        return reference
    if not catalog:
        raise CardNotFound(
            f"@{reference.name} is a name in a catalog, and no catalog is set",
            hint="Set the URL of a catalog or a gateway, or name the agent by host or URL.",
        )
    url, origin = _canonical(catalog)
    return Reference("catalog", url=_catalog(url), origin=origin, name=reference.name)


def find(document: Any, name: str) -> CatalogEntry:
    """Return what a catalog has under a name; raises `CardNotFound` or `CardInvalid`."""
    entries = [(key, entry) for key, entry in _entries(document) if _is_of_agent(entry)]
    if not name:
        if len(entries) == 1:
            return _entry(entries[0][1], "")
        raise CardNotFound(
            f"The catalog has {len(entries)} agents, and the reference names none",
            hint="Add #name to the reference.",
        )
    # A whole name comes before the last part of a URN.
    for matches in (_is_called, _ends_in):
        named = [entry for key, entry in entries if matches(key, entry, name)]
        if len(named) > 1 and any(entry != named[0] for entry in named):
            raise CardNotFound(f"The catalog has several agents called {name!r}")
        if named:
            return _entry(named[0], name)
    raise CardNotFound(f"The catalog has no agent called {name!r}")


def without_fragment(url: str) -> str:
    """Return a URL without the part that is never sent, however wrong the rest of it is."""
    return url.partition("#")[0]


_HINT = "Name a host, a URL, the file of a card or @name."


def _from_url(text: str) -> Reference:
    url, origin = _canonical(without_fragment(text))
    if url == f"{origin}/":
        return Reference("url", url=f"{origin}{CARD_PATH}", origin=origin, is_host=True)
    return Reference("url", url=url, origin=origin)


def _from_file_url(text: str) -> Reference:
    try:
        parts = urlsplit(text)
    except ValueError:
        raise CardNotFound("This is no file URL", hint=_HINT) from None
    if parts.netloc.lower() not in ("", "localhost"):
        raise CardNotFound("The file is on another machine", hint=_HINT)
    path = unquote(parts.path)
    # A drive comes after the slash there.
    return Reference("file", path=Path(path[1:] if os.name == "nt" else path))


def _from_registry(text: str) -> Reference:
    gateway, _, name = without_fragment(text).rstrip("/").rpartition("/")
    # Without a path the last slash is one of those before the host.
    if not name or gateway.endswith("/"):
        raise CardNotFound("The reference names a registry but no agent in it", hint=_HINT)
    url, origin = _canonical(gateway)
    return Reference(
        "catalog", url=url.rstrip("/") + CATALOG_PATH, origin=origin, name=unquote(name)
    )


def _canonical(url: str) -> tuple[str, str]:
    """Return a URL in the one form that all readers read alike, and its origin."""
    try:
        target = read_target(url)
    except NotCanonical as error:
        raise CardNotFound(f"No agent can be named so: {error}", hint=_HINT) from None
    return target.url, target.origin


def _catalog(url: str) -> str:
    """Return the URL of a catalog's document: a host has it at the well-known path."""
    parts = urlsplit(url)
    return url.rstrip("/") + CATALOG_PATH if parts.path == "/" and not parts.query else url


def _home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        # There is no such user, hence no such file either.
        return path


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _is_here(text: str) -> bool:
    """Say whether a host, with whatever is after it, is this machine."""
    try:
        return is_loopback(read_target(f"https://{text}"))
    except NotCanonical:
        return False


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """Return the entries of a catalog, each under the key it has if it has one."""
    if isinstance(document, dict):
        fields = cast("dict[str, Any]", document)
        document = fields.get("entries", fields.get("agents"))
    if isinstance(document, list):
        return (("", entry) for entry in cast("list[Any]", document))
    if isinstance(document, dict):
        return iter(cast("dict[str, Any]", document).items())
    raise CardInvalid("This is no catalog: it has no list of entries", field="entries")


def _is_of_agent(entry: Any) -> bool:
    if isinstance(entry, str):
        return True
    if not isinstance(entry, dict):
        return False
    fields = cast("dict[str, Any]", entry)
    kind = fields.get("mediaType", fields.get("type"))
    return not isinstance(kind, str) or "/" not in kind or kind in _CARD_TYPES or "a2a" in kind


_CARD_TYPES = ("application/json", "")


def _names(key: str, entry: Any) -> Iterator[str]:
    yield key
    if isinstance(entry, dict):
        fields = cast("dict[str, Any]", entry)
        yield from (value for name in _ALIKE if isinstance(value := fields.get(name), str))


def _is_called(key: str, entry: Any, name: str) -> bool:
    return name in _names(key, entry)


def _ends_in(key: str, entry: Any, name: str) -> bool:
    return any(
        found.lower().startswith("urn:") and found.rpartition(":")[2] == name
        for found in _names(key, entry)
    )


def _entry(entry: Any, name: str) -> CatalogEntry:
    if isinstance(entry, str):
        return CatalogEntry(url=entry)
    fields = cast("dict[str, Any]", entry)
    for member in _INLINE:
        if isinstance(card := fields.get(member), dict):
            return CatalogEntry(card=cast("dict[str, Any]", card))
    if any(member in fields for member in _OF_CARDS):
        return CatalogEntry(card=fields)
    for member in _LINKS:
        if isinstance(url := fields.get(member), str) and url:
            return CatalogEntry(url=url)
    raise CardInvalid(f"The catalog has neither a card nor the URL of one for {name!r}")
