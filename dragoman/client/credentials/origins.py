"""Where credentials may go: to origins that the user named, and nowhere that only a card names."""

from collections.abc import Iterable

from dragoman.egress.targets import NotCanonical, Target, read_target
from dragoman.errors import ConfigError, CredentialsMissing


class Origins:
    """The origins the user named: nothing secret goes anywhere else.

    An entry is a URL, of which only the origin counts, or a host, which then means https, and http
    too on this machine. `implied` ones are the interfaces of a card that the user brought: they
    are trusted like the others, but not with plain http.
    """

    def __init__(self, named: Iterable[str] = (), *, implied: Iterable[str] = ()) -> None:
        self._targets = {target.origin: target for entry in named for target in _origin_of(entry)}
        for url in implied:
            try:
                target = read_target(url)
            except NotCanonical:
                # Relative, or an address of another binding: it is no place for HTTP.
                continue
            if target.scheme == "https" or is_loopback(target):
                self._targets[target.origin] = target

    def __repr__(self) -> str:
        return f"Origins({sorted(self._targets)})"

    def also(self, *entries: str) -> "Origins":
        """Return these and more, of which the user named each; empty ones are passed over."""
        more = Origins(entry for entry in entries if entry)
        more._targets |= self._targets
        return more

    def __contains__(self, url: object) -> bool:
        try:
            self.check(str(url))
        except CredentialsMissing:
            return False
        return True

    def check(self, url: str) -> None:
        """Raise `CredentialsMissing` for an address that gets no credentials."""
        try:
            target = read_target(url)
        except NotCanonical as error:
            raise CredentialsMissing(
                f"Credentials are not sent to an address that can be misread: {error}"
            ) from None
        if target.origin in self._targets:
            return
        origin = target.origin
        safe = {known.host for known in self._targets.values() if known.scheme == "https"}
        if target.scheme == "http" and target.host in safe:
            why = "over plain http"
        else:
            why = "which you did not name"
        raise CredentialsMissing(
            f"Credentials are not sent to {origin}, {why}. If they should be, name it: "
            f"origins=[{origin!r}], or --trust-origin {origin}",
            origin=origin,
        )


def origin_of(url: str) -> str:
    """Return the origin of a URL in one canonical spelling; raises `ConfigError` if it has none."""
    try:
        return read_target(url).origin
    except NotCanonical as error:
        raise ConfigError(f"{url!r} is not an address: {error}") from None


def is_loopback(target: Target) -> bool:
    """Say whether a target is this machine, so that no network is in between."""
    if target.address is not None:
        return target.address.is_loopback
    return target.host == "localhost" or target.host.endswith(".localhost")


def _origin_of(entry: str) -> list[Target]:
    entry = entry.strip()
    try:
        if "://" in entry:
            return [read_target(entry)]
        found = read_target(f"https://{entry}")
        if not is_loopback(found):
            return [found]
        return [found, read_target(f"http://{entry}")]
    except NotCanonical as error:
        raise ConfigError(f"{entry!r} is not an origin: {error}") from None
