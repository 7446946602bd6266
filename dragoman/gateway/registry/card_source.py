"""Fetches agents' cards by URL, and again only if they changed. They are not trusted yet."""

from dragoman.client.cards.cards import Cards, Fetched
from dragoman.client.cards.references import CARD_PATH, Reference
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressRefused
from dragoman.egress.targets import NotCanonical, read_target
from dragoman.errors import (
    A2AError,
    CallFailed,
    CardNotFound,
    InvalidParams,
    TimedOut,
    Unreachable,
)

FETCH_WITHIN = 10.0


class CardSource:
    """Fetches cards."""

    def __init__(self, http: Egress) -> None:
        self._http = http
        # One cache per agent: ten thousand agents would evict one another's validators.
        self._cards: dict[str, Cards] = {}

    def check(self, url: str, field: str) -> None:
        """Raise `InvalidParams` for an address that the gateway never calls."""
        try:
            self._http.check(url)
        except EgressRefused as error:
            raise InvalidParams(
                f"is an address that this gateway does not call ({error.reason}); its operator can "
                "allow it: --allow <host:port>, or --allow-private for a developer's machine",
                field=field,
            ) from None

    async def fetch(self, id: str, url: str, known: str = "") -> Fetched:
        """Return the card of the agent at a URL; `known` is where it was found before. Raises the
        errors of `Cards.fetch`."""
        cards = self._cards.setdefault(id, Cards(timeout=FETCH_WITHIN))
        refusal: A2AError = CardNotFound()
        for place, reference in enumerate(places(url, known)):
            try:
                found = await cards.fetch(self._http, reference, fresh=True)
            except CardNotFound as error:
                refusal = error if place == 0 else refusal
                continue
            if reference.url.startswith(_folder(url)) or _is_about(found, url):
                return found
        raise refusal

    def forget(self, id: str) -> None:
        """Forget what was fetched of an agent."""
        self._cards.pop(id, None)


def places(url: str, known: str = "") -> list[Reference]:
    """Return where the card of an agent may be, in the order to try."""
    target = read_target(url)
    path = target.path.partition("?")[0].rstrip("/")
    root = Reference("url", f"{target.origin}{CARD_PATH}", origin=target.origin, is_host=True)
    found = [root]
    if path.endswith(".json"):
        # The URL is that of the card itself.
        found = [Reference("url", target.url, origin=target.origin)]
    elif path:
        below = f"{target.origin}{path}{CARD_PATH}"
        found.insert(0, Reference("url", below, origin=target.origin, is_host=True))
    if known and all(known != reference.url for reference in found):
        found.insert(0, Reference("url", known, origin=read_target(known).origin))
    return found


def is_card(url: str) -> bool:
    """Tell whether a URL is that of a card rather than of an agent."""
    return read_target(url).path.partition("?")[0].endswith(".json")


def no_card(error: A2AError, *, may_know: bool = False) -> InvalidParams:
    """Return why an agent of which only a URL is known cannot be registered; with the cause if the
    caller `may_know` it."""
    is_away = isinstance(error, Unreachable | TimedOut) or not isinstance(error, CallFailed)
    # One sentence for refusal and silence: else callers could scan our network.
    why = "its card could not be fetched" if is_away and not may_know else error.public
    return InvalidParams(f"{why}; give a name to register it without a card", field="url")


def _folder(url: str) -> str:
    """Return the prefix of URLs whose cards can only be about this agent."""
    target = read_target(url)
    return target.origin + target.path.partition("?")[0].rstrip("/")


def _is_about(found: Fetched, url: str) -> bool:
    """Tell whether a card at the root of a host is that of the agent below it: the host may have
    others."""
    folder = _folder(url)
    for interface in found.card.supported_interfaces:
        try:
            address = read_target(interface.url).url
        except NotCanonical:
            continue
        if address.rstrip("/") == folder or address.startswith(f"{folder}/"):
            return True
    return False
