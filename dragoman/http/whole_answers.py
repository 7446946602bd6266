"""Answers that are written at once: head and body in one write, without messages of ASGI.

uvicorn's cycle takes an answer in two messages or more and writes each by itself. Most of ours are
whole when they begin, so the connection offers the app a shorter way. What cannot go by it goes by
ASGI as ever.
"""

from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_WITHOUT_BODY = (204, 304)


class ResponseCycle(RequestResponseCycle):
    """One request and its answer."""

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole answer. False: nothing was written, it has to be sent by ASGI.

        The headers have lower-case names."""
        if self.flow.write_paused or self.disconnected or self.response_started:
            return False
        if not self.keep_alive or self.scope["method"] == "HEAD":
            return False
        head = b"".join([b"%b: %b\r\n" % header for header in headers])
        if b"content-length: " not in head and status not in _WITHOUT_BODY:
            return False
        # A value with a line of its own would be a header of its own.
        if head.count(b"\n") != len(headers) or head.count(b"\r") != len(headers) or b"\0" in head:
            return False
        self.waiting_for_100_continue = False
        self.response_started = self.response_complete = True
        self.transport.write(b"%b%b\r\n%b" % (_LINES[status], head, body))
        self.message_event.set()
        self.on_response()
        return True
