"""Which requests are refused without the app: in overload those that are too many, and at any time
those of callers who have asked too often. The plainest of them are not even parsed, which is most
of what a refusal would cost; connections that are refused again cost less still
(`refused_connections`).
"""

from collections.abc import Sequence

from dragoman.http.admission import Ticket
from dragoman.http.connections import BUSY, LIMITED, Connections
from dragoman.http.limits import Header
from dragoman.http.refusals.limited_callers import Known

# Bytes of a head that is kept to be compared with the next one.
MAX_KEPT_HEAD = 1024

# The answer, what it is counted as, and whether it is written at once in any case.
EarlyRefusal = tuple[bytes, str, bool]
_BUSY: EarlyRefusal = (BUSY.answer, BUSY.reason, False)
_BUSY_AT_ONCE: EarlyRefusal = (BUSY.answer, BUSY.reason, True)


class EarlyRefusals:
    """Decides for one connection; the connection writes the answers."""

    __slots__ = (
        "_address",
        "_certificate",
        "_client",
        "_connections",
        "_head_key",
        "_is_known_head",
        "_known",
        "_ticket",
        "counts_for",
        "head",
        "length",
    )

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._client: object = None
        self._address = ""
        self._certificate: bytes | None = None
        # Set once the request that comes may begin.
        self._ticket: Ticket | None = None
        # What the request is known by if it is one whole plain one.
        self._known: Known | None = None
        # The last head of a plain one, what it is known by, and how long the whole request was.
        self.head = self._head_key = b""
        self.length = -1
        # Whether the request that came last was such a one.
        self._is_known_head = False
        # Whom requests here count for in overload; None: that is to be found out.
        self.counts_for: object = None

    def connect(self, client: object, address: str, certificate: bytes | None) -> None:
        """A caller has connected."""
        self._client, self._address, self._certificate = client, address, certificate

    @property
    def is_active(self) -> bool:
        """Whether any request may be refused here at present."""
        connections = self._connections
        admission = connections.admission
        return connections.refusals.is_alert or (admission is not None and admission.is_overloaded)

    def unread(self, data: bytes) -> EarlyRefusal | None:
        """Return how one whole plain request is refused unparsed; None: it has to be read."""
        if self._ticket is not None:
            # It was let in when it was read with those of other connections.
            return None
        refused = self._refusal(data)
        admission = self._connections.admission
        if refused is None and self._is_known_head and admission is not None:
            if not admission.is_overloaded:
                return None
            self._ticket = admission.enter(self._client)
            if self._ticket is None:
                return _BUSY
        return refused

    def _refusal(self, data: bytes) -> EarlyRefusal | None:
        """Return the same, and let no request begin: None also if this one may."""
        connections = self._connections
        refusals, admission = connections.refusals, connections.admission
        self._known = None
        if len(data) != self.length or not data.startswith(self.head):
            key = refusals.heads.find(data)
            self._is_known_head = key is not None
            if key is None:
                return None
            self._keep_head(data, key)
        else:
            self._is_known_head = True
        if refusals.is_alert:
            self._known = self._address, self._certificate, self._head_key
            answer = refusals.of_head(self._known)
            if answer is not None:
                return answer, LIMITED, False
        if admission is None or not admission.is_overloaded:
            return None
        if not admission.turns_away(self.counts_for or self.find_caller()):
            return None
        return _BUSY_AT_ONCE if admission.refused < admission.at_once else _BUSY

    def find_caller(self) -> object:
        """Find out, in overload, whom requests here count for."""
        admission = self._connections.admission
        self.counts_for = None if admission is None else admission.who(self._client)
        return self.counts_for

    def _keep_head(self, data: bytes, key: bytes) -> None:
        """Recognize the head of a plain request by its bytes alone. They are kept as long as the
        connection, as the fields of the last request are, credentials included."""
        self._head_key = key
        end = data.find(b"\r\n\r\n") + 4
        if end <= MAX_KEPT_HEAD:
            self.head, self.length = data[:end], len(data)
        else:
            self.head, self.length = b"", -1

    def after_head(self, headers: Sequence[Header]) -> EarlyRefusal | None:
        """Return how a request is refused whose head was read; None: it may begin, or the app
        decides. Only for plain requests: others have refusals that are not as plain."""
        refusals, admission = self._connections.refusals, self._connections.admission
        known, self._known = self._known, None
        if refusals.is_alert:
            answer = refusals.of(self._address, self._certificate, headers, known)
            if answer is not None:
                ticket = self.take_ticket()
                if ticket is not None and admission is not None:
                    admission.end(ticket)
                return answer, LIMITED, False
        if self._ticket is None and admission is not None and admission.is_overloaded:
            self._ticket = admission.enter(self._client)
            if self._ticket is None:
                return _BUSY
        return None

    def known_head(self, headers: Sequence[Header]) -> EarlyRefusal | None:
        """Decide the same of a request that need not be read: its connection knows its head.
        Otherwise callers would pay for one beside them that is limited."""
        is_judged = self._ticket is not None or not self._is_known_head
        return None if is_judged else self.after_head(headers)

    def take_ticket(self) -> Ticket | None:
        """Return the ticket of the request that begins; None: the app decides whether it may."""
        ticket, self._ticket = self._ticket, None
        self._known = None
        return ticket
