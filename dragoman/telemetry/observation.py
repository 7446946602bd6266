"""One request as the operator sees it: counted, timed, traced and, if configured, logged."""

import logging
from collections.abc import Sequence
from contextvars import Token
from time import perf_counter
from typing import Any, Protocol

from dragoman.model.card import GRPC, HTTP_JSON, JSONRPC
from dragoman.model.identity import Caller
from dragoman.telemetry import figures, tracing
from dragoman.telemetry.tracing import Here, Span

access = logging.getLogger("dragoman.access")
# Statuses of refusals by HTTP rules rather than by the protocol.
_REFUSED = frozenset({401, 403, 429, 503})
_GUARDED = frozenset({400, 408, 411, 413, 414, 415, 417, 421, 431, 505})
# Bindings as the protocol spells them.
_BINDINGS = {"jsonrpc": JSONRPC, "rest": HTTP_JSON, "grpc": GRPC, "api": "API", "corvid": "corvid"}
# Characters of a verb in the log.
_MAX_VERB = 16


class RequestOrigin(Protocol):
    """The caller and the address of a request."""

    verb: str
    address: str

    @property
    def caller(self) -> Caller:
        """The caller of the request."""
        ...


class RequestObservation:
    """What is known of a request while it is answered."""

    # Set here and not in the constructor: one is made for each request.
    operation = "none"
    binding = "none"
    version = "none"
    outcome = "ok"
    # The name of the route, without ids and query.
    route = ""
    agent = ""
    # 0: nothing was answered.
    status = 0
    span: Span | None = None
    _before: Token[Here | None] | None = None
    _is_done = False
    _is_timed = False

    def __init__(self) -> None:
        self._began = perf_counter()

    def join(self, headers: Sequence[tuple[bytes, bytes]], *, has_trace: bool) -> None:
        """Join the trace that the request names, or begin one if tracing is on. Needless if
        neither is so."""
        trace = tracing.arrived(headers) if has_trace else None
        # The context of the code around this request is not the origin of the request.
        self._before = tracing.here.set(Here(trace))
        if tracing.on:
            self.span = tracing.begin("A2A request", {}, kind="server", parent=trace)
            tracing.here.set(Here(self.span.trace, span=self.span))

    def is_for(self, operation: str, version: str, agent: str) -> None:
        """Note the decoded operation."""
        self.operation = operation
        self.version = version
        self.agent = agent
        if self.span is not None:
            self.span.rename(operation)
            self.span.set(
                {
                    "a2a.operation": operation,
                    "a2a.binding": self.binding,
                    "a2a.version": version,
                    "agent.id": agent,
                }
            )

    def failed(self, error: BaseException, code: int | None = None) -> None:
        """Note the error of the answer, and its JSON-RPC code."""
        self.outcome = type(error).__name__
        if self.span is not None and code is not None:
            self.span.set({"rpc.jsonrpc.error_code": code})

    def answered(self) -> None:
        """Note that the answer, or the first event of a stream, is ready."""
        if not self._is_timed:
            self._is_timed = True
            figures.request_seconds.add(perf_counter() - self._began, self.operation)

    def responded(self, status: int) -> None:
        """Note the status of the answer."""
        self.answered()
        self.status = status
        if status < 400:
            return
        if self.outcome == "ok":
            self.outcome = f"http_{status}"
        if status in _REFUSED:
            figures.refusals.add(str(status))
        elif self.operation == "none" and status in _GUARDED:
            figures.refusals.add("guard")

    def end(self, origin: RequestOrigin) -> None:
        """Note that the request, and its stream, is over."""
        if self._is_done:
            return
        self._is_done = True
        if not self._is_timed:
            self.answered()
        figures.requests.add(self.operation, self.binding, self.version, self.outcome)
        if access.isEnabledFor(logging.INFO):
            self._log(origin)
        if self.span is not None:
            self.span.set({"a2a.outcome": self.outcome})
            if self.status:
                self.span.set({"http.response.status_code": self.status})
            if self.outcome != "ok":
                self.span.fail(self.outcome)
            self.span.end()
        if self._before is not None:
            tracing.here.reset(self._before)
            self._before = None

    def _log(self, origin: RequestOrigin) -> None:
        """Write the access log line: as one text, and as fields for JSON logs."""
        milliseconds = round((perf_counter() - self._began) * 1000, 1)
        principal = origin.caller.principal.text
        facts: dict[str, Any] = {"verb": origin.verb[:_MAX_VERB], "route": self.route}
        if self.operation != "none":
            facts |= {"operation": self.operation, "binding": _BINDINGS[self.binding]}
            facts |= {"version": self.version, "agent": self.agent}
        facts |= {"status": self.status, "outcome": self.outcome, "milliseconds": milliseconds}
        facts |= {"caller": principal, "address": origin.address}
        words = [facts["verb"], self.route or "-"]
        if self.operation != "none":
            words += [self.operation, facts["binding"], self.version]
        words.append(str(self.status or "-"))
        if self.outcome != "ok" and not self.outcome.startswith("http_"):
            words.append(self.outcome)
        words.append(f"{milliseconds:.1f} ms")
        if principal:
            # The issuer chooses the name of an owner: a space in it must not split the field.
            words.append(f"caller={principal.replace(' ', '%20')}")
        if origin.address:
            words.append(origin.address)
        facts = {name: value for name, value in facts.items() if value not in ("", 0)}
        access.info("%s", " ".join(words), extra={"facts": facts})


class StepObservation:
    """A durable step of an agent's code while it runs."""

    __slots__ = ("_began", "_span")

    def __init__(self, name: str) -> None:
        self._span: Span | None = None
        if tracing.on:
            self._span = tracing.begin(f"step {name}", {"agent.tool.name": name})
            self._span.enter()
        self._began = perf_counter()

    def end(self, error: BaseException | None = None) -> float:
        """Note the end of the step; return its seconds. The caller counts it: this may run in a
        thread."""
        if self._span is not None:
            if error is not None:
                self._span.fail(type(error).__name__)
            self._span.leave()
            self._span.end()
        return perf_counter() - self._began
