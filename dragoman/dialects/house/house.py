"""What house dialects have in common: they are 0.x with shapes, errors and habits of their own."""

from dragoman.dialects import errors
from dragoman.dialects.reading import Object
from dragoman.dialects.v0_3 import V0
from dragoman.errors import A2AError


class House(V0):
    """A dialect that one system speaks."""

    # Whether its callers choose the ids of tasks, within what is theirs.
    names_tasks: bool = False
    # Whether a stream goes on while the task waits for its caller.
    keeps_open: bool = False
    # Methods whose answer its clients read as events, whatever they accept: errors too.
    streams_of_events_alone: tuple[str, ...] = ()

    def encode_error(self, error: A2AError) -> Object:
        """Return the `error` member of a JSON-RPC answer."""
        return errors.jsonrpc(error, self.version)

    def http_status(self, error: A2AError) -> int:
        """Return the status of a JSON-RPC answer that is an error of the protocol."""
        return 200
