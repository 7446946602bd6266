"""Which requests are those of houses, the dialects of single systems: by the path that is theirs
alone, or by what only they send to a path of all. A call of 1.0 is not looked at, and one of 0.3
that is plainly official only once."""

from dragoman.config import Settings
from dragoman.dialects import house
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.house import nexus, r, selectools
from dragoman.dialects.v0_2 import V0_2
from dragoman.dialects.v0_3 import V0_3, V0_3_OBJECTS
from dragoman.http.request import HttpRequest
from dragoman.http.routes import Answer
from dragoman.server.endpoints.corvid_endpoints import CorvidEndpoints
from dragoman.server.endpoints.jsonrpc_endpoint import JsonRpcEndpoint
from dragoman.server.endpoints.responder import Choose, Responder
from dragoman.transports import jsonrpc

_SENDS = ("SendMessage", "SendStreamingMessage")


class Houses:
    """The house dialects that are served."""

    def __init__(self, settings: Settings, responder: Responder, elsewhere: Answer) -> None:
        """`elsewhere` answers what a later version of the protocol sends to a path of a house."""
        self._official = responder.official
        self._served = settings.houses()
        self._at_nexus = nexus.NEXUS if settings.dialects.nexus_sync else nexus.NEXUS_DOOR
        self._over_rest = r.RX_REST_WRAPPED if settings.dialects.rx_rest_wrap else r.RX_REST
        self._needs_text = settings.dialects.require_text_part and "selectools" in self._served
        # How a task is shown to a caller that names no version, by dialect and id or none.
        self._unversioned: dict[tuple[Dialect, bool], Dialect] = {
            (plain, has_id): house.Unversioned(plain, self._served, has_id=has_id)
            for plain in (V0_3, V0_3_OBJECTS)
            for has_id in (True, False)
        }
        at_nexus = JsonRpcEndpoint(responder, self._choose_at_nexus, self._at_nexus)
        choose = _choose_at_r(responder.official)
        at_r = JsonRpcEndpoint(responder, choose, r.RX, denies_in_body=True)
        # What answers the paths that are of one house alone.
        self.answers: dict[str, Answer] = {
            nexus.PATH: at_nexus.answer,
            r.PATH: at_r.answer,
            **CorvidEndpoints(settings, responder).answers(elsewhere),
        }

    def _choose_at_nexus(
        self, request: HttpRequest, envelope: jsonrpc.Envelope, first: str
    ) -> Dialect:
        return self._at_nexus

    def choose(self, request: HttpRequest, envelope: jsonrpc.Envelope, first: str) -> Dialect:
        """Return the dialect of a request of 0.x to a path of all dialects."""
        is_versioned = any(request.version)
        found = self._by_request(request, envelope, is_versioned=is_versioned)
        if found is not None:
            return found
        dialect = self._official(request, envelope, first)
        if envelope.method == "tasks/get" and not is_versioned:
            return self._unversioned.get((dialect, envelope.id is not None), dialect)
        return dialect

    def _by_request(
        self, request: HttpRequest, envelope: jsonrpc.Envelope, *, is_versioned: bool
    ) -> Dialect | None:
        """Return the house that makes such a request of 0.x; None: no house does."""
        method, params = envelope.method, envelope.params
        found = None
        if not house.is_official(method, params):
            reads_events = _reads_events(request)
            found = house.by_request(method, params, self._served, reads_events=reads_events)
        if found is house.FASTA2A and is_versioned:
            # Its client names no version; a request that does is answered in that one.
            found = None
        is_text = self._needs_text and request.path in selectools.PATHS
        if is_text and found in (None, selectools.SELECTOOLS):
            return selectools.SELECTOOLS_TEXT
        return found

    def over_rest(self, dialect: Dialect, method: str) -> Dialect:
        """Return the dialect of a REST call of 0.3, whose body is that of its JSON schema: only
        one house sends these."""
        is_core = dialect in (V0_3, V0_2) and method in _SENDS
        return self._over_rest if is_core and "r" in self._served else dialect


def _reads_events(request: HttpRequest) -> bool:
    return b"text/event-stream" in request.headers.get(b"accept", b"")


def _choose_at_r(official: Choose) -> Choose:
    def choose(request: HttpRequest, envelope: jsonrpc.Envelope, first: str) -> Dialect:
        # This house judges the whole envelope before what is in it.
        if not envelope.has_id:
            raise jsonrpc.unanswerable()
        dialect = official(request, envelope, first)
        if dialect.version == "1.0":
            return dialect
        return r.RX_FOLLOWING if _reads_events(request) else r.RX

    return choose
