"""One request as an operator sees it: counted, timed, traced and, if wanted, logged."""

import logging
import time
from collections.abc import Sequence
from contextvars import Token
from typing import Any, Protocol

from dragoman.model.card import HTTP_JSON, JSONRPC
from dragoman.model.identity import Caller
from dragoman.telemetry import figures, tracing
from dragoman.telemetry.tracing import Here, Span

access = logging.getLogger("dragoman.access")
# Statuses of refusals that are a matter of HTTP and not of the protocol.
_REFUSED = frozenset({401, 403, 429, 503})
_GUARDED = frozenset({400, 408, 411, 413, 414, 415, 417, 421, 431, 505})
# Bindings as the protocol spells them.
_BINDINGS = {"jsonrpc": JSONRPC, "rest": HTTP_JSON, "api": "API", "corvid": "corvid"}
# Of a verb: longer ones are none.
_MAX_VERB = 16


class Asking(Protocol):
    """Who makes a request, and from where."""

    verb: str
    address: str

    @property
    def caller(self) -> Caller:
        """Whom it speaks for."""
        ...


class Observed:
    """What is known of a request while it is answered."""

    __slots__ = (
        "_before",
        "_began",
        "_is_done",
        "_is_timed",
        "agent",
        "binding",
        "operation",
        "outcome",
        "route",
        "span",
        "status",
        "version",
    )

    def __init__(self) -> None:
        self.operation = "none"
        self.binding = "none"
        self.version = "none"
        self.outcome = "ok"
        # Which path it is, without what callers put into it: no ids, no query.
        self.route = ""
        self.agent = ""
        # 0: nothing was answered.
        self.status = 0
        self.span: Span | None = None
        self._began = time.perf_counter()
        self._before: Token[Here | None] | None = None
        self._is_done = self._is_timed = False

    def join(self, headers: Sequence[tuple[bytes, bytes]], *, has_trace: bool) -> None:
        """Go on with the trace that the request names, or begin one if traces are made."""
        if not (has_trace or tracing.on):
            return
        trace = tracing.arrived(headers) if has_trace else None
        # What runs around us in this process is not where the request comes from.
        self._before = tracing.here.set(Here(trace))
        if tracing.on:
            self.span = tracing.begin("A2A request", {}, kind="server", parent=trace)
            tracing.here.set(Here(self.span.trace, span=self.span))

    def is_for(self, operation: str, version: str, agent: str, task_id: str) -> None:
        """Note what is asked, once that is decoded."""
        self.operation, self.version, self.agent = operation, version, agent
        if self.span is not None:
            self.span.rename(operation)
            self.span.set(
                {
                    "a2a.operation": operation,
                    "a2a.binding": self.binding,
                    "a2a.version": version,
                    "agent.id": agent,
                    "agent.task.id": task_id,
                }
            )

    def failed(self, error: BaseException, code: int | None = None) -> None:
        """Note what the answer says instead, and its number in JSON-RPC."""
        self.outcome = type(error).__name__
        if self.span is not None and code is not None:
            self.span.set({"rpc.jsonrpc.error_code": code})

    def answered(self) -> None:
        """Note that the answer, or the first event of a stream, is there."""
        if not self._is_timed:
            self._is_timed = True
            figures.request_seconds.add(time.perf_counter() - self._began, self.operation)

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

    def end(self, asking: Asking) -> None:
        """It is over; the stream too, if it was one."""
        if self._is_done:
            return
        self._is_done = True
        self.answered()
        figures.requests.add(self.operation, self.binding, self.version, self.outcome)
        if access.isEnabledFor(logging.INFO):
            self._log(asking)
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

    def _log(self, asking: Asking) -> None:
        """Write its line: for people as one text, for programs as members."""
        milliseconds = round((time.perf_counter() - self._began) * 1000, 1)
        principal = asking.caller.principal.text
        facts: dict[str, Any] = {"verb": asking.verb[:_MAX_VERB], "route": self.route}
        if self.operation != "none":
            facts |= {"operation": self.operation, "binding": _BINDINGS[self.binding]}
            facts |= {"version": self.version, "agent": self.agent}
        facts |= {"status": self.status, "outcome": self.outcome, "milliseconds": milliseconds}
        facts |= {"caller": principal, "address": asking.address}
        words = [facts["verb"], self.route or "-"]
        if self.operation != "none":
            words += [self.operation, facts["binding"], self.version]
        words.append(str(self.status or "-"))
        if self.outcome != "ok" and not self.outcome.startswith("http_"):
            words.append(self.outcome)
        words.append(f"{milliseconds:.1f} ms")
        if principal:
            # An owner is whatever its issuer says: it must not pass for two words.
            words.append(f"caller={principal.replace(' ', '%20')}")
        if asking.address:
            words.append(asking.address)
        facts = {name: value for name, value in facts.items() if value not in ("", 0)}
        access.info("%s", " ".join(words), extra={"facts": facts})


class Step:
    """A durable step of an agent's code while it is done."""

    __slots__ = ("_began", "_span")

    def __init__(self, name: str) -> None:
        self._span: Span | None = None
        if tracing.on:
            self._span = tracing.begin(f"step {name}", {"agent.tool.name": name})
            self._span.enter()
        self._began = time.perf_counter()

    def end(self, error: BaseException | None = None) -> float:
        """It is done, or failed; return how many seconds it took. Counted elsewhere: this may run
        in a thread."""
        if self._span is not None:
            if error is not None:
                self._span.fail(type(error).__name__)
            self._span.leave()
            self._span.end()
        return time.perf_counter() - self._began
