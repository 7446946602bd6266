"""Which requests are refused without the app: in overload those that are too many, and at any time
those of callers who have asked too often. The plainest of them are not even read.
"""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from dragoman.server import connections as limits
from dragoman.server.admission import Ticket
from dragoman.server.connections import BUSY, LIMITED, Connections
from dragoman.server.http_line import Line
from dragoman.server.refusals import Known

# A length of more digits than this is a large body: one to hang up on rather than to swallow.
LARGE_DIGITS = 5
# Bytes of a head that is kept to be compared with the next one.
MAX_KEPT_HEAD = 1024


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
        self._ticket: Ticket | None = None
        # What the request is known by if it is one whole plain one.
        self._known: Known | None = None
        # The last head of a plain one, how long the whole request was, and what it is known by.
        self._plain = self._plain_key = b""
        self._plain_length = -1
        # Whom the requests here count for; None: that is to be found out.
        self._who: object = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # The app may find out who speaks here.
        self._who = None
        super()._start_asgi_task(cycle, app)

    def _is_refused_unread(self, data: bytes) -> bool:
        """Refuse one whole plain request in overload, or like one before, and tell whether that
        was done. With five times what we can do, most of the time would go into reading what is
        not answered: so little is called here, and little looked at."""
        everyone = self._all
        refusals, admission = everyone.refusals, everyone.admission
        is_crowded = admission is not None and admission.is_overloaded
        self._known = None
        if not (is_crowded or refusals.is_alert) or self._is_answering:
            return False
        if len(data) != self._plain_length or not data.startswith(self._plain):
            key = refusals.heads.find(data)
            if key is None:
                return False
            self._keep_plain(data, key)
        if refusals.is_alert:
            self._known = self.address, self._certificate, self._plain_key
            answer = refusals.of_head(self._known)
            if answer is not None:
                self._turn_away(answer, LIMITED, is_last=True)
                self.read_by = everyone.now + limits.IDLE_SECONDS
                return True
        if admission is None or not is_crowded:
            return False
        who = self._who
        if who is None:
            who = self._who = admission.who(self.client)
        if not admission.turns_away(who) and (ticket := admission.enter(self.client)):
            self._ticket = ticket
            return False
        if admission.refused < admission.at_once:
            everyone.refused[BUSY.reason] += 1
            self.transport.write(BUSY.answer)
        else:
            self._turn_away(BUSY.answer, BUSY.reason, is_last=True)
        self.read_by = everyone.now + limits.IDLE_SECONDS
        return True

    def _keep_plain(self, data: bytes, key: bytes) -> None:
        """Know the head of a plain request again by its bytes alone. They are kept as long as the
        connection, as the fields of the last one that was read are, credentials and all."""
        self._plain_key = key
        end = data.find(b"\r\n\r\n") + 4
        if end <= MAX_KEPT_HEAD:
            self._plain, self._plain_length = data[:end], len(data)
        else:
            self._plain, self._plain_length = b"", -1

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
        self._give_back()
        return True

    def _is_admitted(self) -> bool | None:
        """Whether a request may begin; None: the app decides. In overload that is decided here,
        unless its refusal is not as plain as most."""
        admission = self._all.admission
        if self._ticket is not None:
            return True
        if admission is None or not admission.is_overloaded or not self._is_plain():
            return None
        self._ticket = admission.enter(self.client)
        if self._ticket is not None:
            return True
        self._turn_away(BUSY.answer, BUSY.reason, is_last=False)
        return False

    def _give_back(self) -> None:
        """What was let in is not begun after all."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None and self._all.admission is not None:
            self._all.admission.end(ticket)

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
