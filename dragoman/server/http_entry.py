"""Which requests are refused without the app: in overload those that are too many, and at any time
those of callers who have asked too often. The plainest of them are not even read.
"""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from dragoman.server import connections as limits
from dragoman.server.connections import BUSY, LIMITED, Connections
from dragoman.server.http_line import Line
from dragoman.server.refusals import Known

# A length of more digits than this is a large body: one to hang up on rather than to swallow.
LARGE_DIGITS = 5


class Entry(Line):
    """One connection of a caller, who may be turned away."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(connections, config, server_state, app_state, _loop)
        # The fields of the request that say where and how it ends.
        self._seen: dict[bytes, bytes] = {}
        # Set if it is decided that the request that comes may begin.
        self._verdict: bool | None = None
        # What the request is known by if it is one whole plain one.
        self._known: Known | None = None

    def _is_refused_unread(self, data: bytes) -> bool:
        """Refuse one whole plain request in overload, or like one before, and tell whether that
        was done. With five times what we can do, most of the time would go into reading what is
        not answered."""
        refusals, admission = self._all.refusals, self._all.admission
        is_crowded = admission is not None and admission.is_overloaded
        self._known = None
        if not (is_crowded or refusals.is_alert) or self._is_answering:
            return False
        head = refusals.heads.find(data)
        if head is None:
            return False
        self._known = self.address, self._certificate, head
        answer = refusals.of_head(self._known) if refusals.is_alert else None
        if answer is not None:
            self._turn_away(answer, LIMITED, is_last=True)
        elif admission is None or not is_crowded:
            return False
        elif admission.enter(self.client):
            self._verdict = True
            return False
        else:
            self._turn_away(BUSY.answer, BUSY.reason, is_last=True)
        self.read_by = self._all.now + limits.IDLE_SECONDS
        return True

    def _is_refused(self) -> bool:
        """Refuse a request of someone who has asked too often, and tell whether that was done."""
        refusals = self._all.refusals
        known, self._known = self._known, None
        if not refusals.is_alert or not self._is_plain():
            return False
        answer = refusals.of(self.address, self._certificate, self.headers, known)
        if answer is None:
            return False
        self._turn_away(answer, LIMITED, is_last=False)
        return True

    def _is_admitted(self) -> bool | None:
        """Whether a request may begin; None: the app decides. In overload that is decided here,
        unless its refusal is not as plain as most."""
        verdict, self._verdict = self._verdict, None
        admission = self._all.admission
        if verdict is not None or admission is None or not admission.is_overloaded:
            return verdict
        if not self._is_plain():
            return None
        if admission.enter(self.client):
            return True
        self._turn_away(BUSY.answer, BUSY.reason, is_last=False)
        return False

    def _is_plain(self) -> bool:
        """Whether an answer may be given before the body has come, and the connection kept."""
        # The base class says there may be none; here a head was just read.
        parser: Any = self.parser
        return (
            not self._is_answering
            and parser.get_method() == b"POST"
            and parser.should_keep_alive()
            and b"expect" not in self._seen
            and 0 < len(self._seen.get(b"content-length", b"")) <= LARGE_DIGITS
            and not any(name == b"last-event-id" for name, _ in self.headers)
        )
