"""Why a request got no answer, in words for the operator and in one sentence for everyone else."""

from dragoman.errors import ConfigError


class EgressError(Exception):
    """The address could not be reached."""

    # One sentence for the caller that named the address: told apart, a refusal, a closed port and
    # silence would let it scan our network. The reason is for the operator's log.
    public = "The address could not be reached."

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(self.public)


class EgressRefused(EgressError):
    """We do not go there, whatever may be there: the URL itself says so. A name that leads where we
    do not go is one that could not be reached, like a name that does not exist."""


class EgressFailed(EgressError):
    """We went there and got no answer, or not all of it."""

    def __init__(self, reason: str, *, is_sent: bool = True) -> None:
        super().__init__(reason)
        # Whether the request may have arrived.
        self.is_sent = is_sent


class EgressClosed(EgressError, ConfigError):
    """The client was closed before it was asked: a mistake of its user, so an error of
    configuration, and no failure of the peer."""

    public = "The client is closed"

    def __init__(self) -> None:
        super().__init__("the client is closed")


# Why a wait or an answer was cut off.
CLOSED = "the client was closed"


class RpcFailed(Exception):
    """A peer ended an rpc with an error: the name of its status, its words, and what came with it.
    What that means is not decided here."""

    def __init__(self, status: str, words: str, details: bytes, trailers: dict[str, str]) -> None:
        super().__init__(f"{status}: {words}")
        self.status = status
        self.words = words
        self.details = details
        self.trailers = trailers
