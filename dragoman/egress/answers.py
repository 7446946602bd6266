"""What a peer answered: whole, or as it comes."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from dragoman.egress.errors import CLOSED, EgressFailed
from dragoman.egress.http1 import Http1Connection, WireError, kind_of
from dragoman.egress.pool import Origin, Pool
from dragoman.egress.unpacking import Unpacker
from dragoman.egress.waits import Waits


@dataclass(frozen=True, slots=True)
class EgressResponse:
    """What a peer answered: the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_cut: bool = False  # there was more than we wanted


class StreamedResponse:
    """An answer whose head has come, and whose body is read as it comes."""

    __slots__ = ("_connection", "_origin", "_pool", "_unpacker", "_waits", "headers", "status")

    def __init__(
        self, connection: Http1Connection, pool: Pool, origin: Origin, waits: Waits
    ) -> None:
        self._connection: Http1Connection | None = connection
        self._pool = pool
        self._origin = origin
        self._waits = waits
        self._unpacker: Unpacker | None = None
        self.status = connection.status
        self.headers = connection.headers

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body piece by piece; raises EgressFailed when it breaks off."""
        connection = self._connection
        if connection is None:
            return
        is_packed = self.headers.get("content-encoding", "identity") not in ("identity", "")
        try:
            while piece := await connection.piece():
                if not is_packed:
                    yield piece
                    continue
                if self._unpacker is None:
                    self._unpacker = Unpacker(self.headers["content-encoding"])
                for unpacked in self._unpacker.unpack(piece):
                    yield unpacked
            if self._unpacker is not None:
                self._unpacker.finish()
        except WireError as error:
            raise EgressFailed(CLOSED if self._waits.is_closed else kind_of(error)) from None
        self.done()

    def done(self) -> None:
        """Release the connection: for the next request if the whole body was read."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(self._origin, connection)


async def read_whole(reply: StreamedResponse, most: int) -> EgressResponse:
    """Return an answer with at most so many bytes of its body."""
    body = bytearray()
    # A peer that packs its answer although asked not to is counted by what comes out.
    async for piece in reply.chunks():
        body += piece
        if len(body) > most:
            return EgressResponse(reply.status, reply.headers, bytes(body[:most]), is_cut=True)
    return EgressResponse(reply.status, reply.headers, bytes(body))
