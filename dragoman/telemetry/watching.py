"""One request as an operator sees it: counted, timed, traced and, if wanted, logged."""

import logging
import time
from collections.abc import Sequence
from contextvars import Token

from dragoman.telemetry import figures, tracing
from dragoman.telemetry.tracing import Here, Span

access = logging.getLogger("dragoman.access")
# Reasons that are a matter of HTTP and not of the protocol, by status.
_REFUSED = {401: "401", 403: "403", 429: "429", 503: "503"}
_GUARDED = frozenset({400, 408, 411, 413, 414, 415, 417, 421, 431, 505})


class Watched:
    """What is known of a request while it is answered."""

    __slots__ = (
        "_before",
        "_began",
        "_is_done",
        "_is_timed",
        "binding",
        "operation",
        "outcome",
        "span",
        "version",
    )

    def __init__(self) -> None:
        self.operation = "none"
        self.binding = "none"
        self.version = "none"
        self.outcome = "ok"
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
        self.operation, self.version = operation, version
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

    def failed(self, error: BaseException) -> None:
        """Note what the answer says instead."""
        self.outcome = type(error).__name__

    def answered(self) -> None:
        """Note that the answer, or the first event of a stream, is there."""
        if not self._is_timed:
            self._is_timed = True
            figures.request_seconds.add(time.perf_counter() - self._began, self.operation)

    def responded(self, status: int) -> None:
        """Note the status of the answer."""
        self.answered()
        if status < 400:
            return
        if self.outcome == "ok":
            self.outcome = f"http_{status}"
        if status in _REFUSED:
            figures.refusals.add(_REFUSED[status])
        elif self.operation == "none" and status in _GUARDED:
            figures.refusals.add("guard")

    def end(self) -> None:
        """It is over; the stream too, if it was one."""
        if self._is_done:
            return
        self._is_done = True
        self.answered()
        figures.requests.add(self.operation, self.binding, self.version, self.outcome)
        if access.isEnabledFor(logging.INFO):
            milliseconds = (time.perf_counter() - self._began) * 1000
            asked = (self.operation, self.binding, self.version, self.outcome)
            access.info("%s %s %s %s %.1f ms", *asked, milliseconds)
        if self.span is not None:
            self.span.set({"a2a.outcome": self.outcome})
            if self.outcome != "ok":
                self.span.fail(self.outcome)
            self.span.end()
        if self._before is not None:
            tracing.here.reset(self._before)
            self._before = None


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
