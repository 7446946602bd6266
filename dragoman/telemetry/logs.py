"""Log lines: as text or as JSON, with the trace and the task they belong to.

Quoted text cannot end a line, colour it or imitate another line, and what looks like a credential
is removed.
"""

import logging
import sys
import time
from types import TracebackType
from typing import Any, TextIO

import msgspec

from dragoman.model.patterns import CONTROLS, json_escaped
from dragoman.security.secret_text import hidden_text, hidden_value
from dragoman.telemetry import tracing

# Libraries whose lines below warnings are not wanted: they log whole requests.
_NOISY = ("asyncio", "urllib3", "opentelemetry")


def masked(text: str) -> str:
    """Return a text without what is named or formatted like a credential."""
    return hidden_text(text, "***")


def escaped(text: str) -> str:
    """Return a text as a single line."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _where(record: logging.LogRecord) -> dict[str, str]:
    """Return the trace, task and agent of a line."""
    found = tracing.here.get()
    where: dict[str, str] = {}
    if found is not None:
        trace = tracing.current()
        if trace is not None:
            where = {"trace_id": trace.trace_id, "span_id": trace.span_id}
        if found.task_id:
            where["task_id"] = found.task_id
        if found.agent:
            where["agent"] = found.agent
    # `extra` takes precedence: it is about this line.
    for name in ("task_id", "agent", "incident"):
        value: Any = getattr(record, name, None)
        if value:
            where[name] = str(value)
    return where


def log_error(
    logger: logging.Logger,
    message: str,
    *args: Any,
    error: BaseException,
    trace: TracebackType | None = None,
    **facts: Any,
) -> None:
    """Log an exception of author code, with a part of its traceback if one is given. Some cannot be
    formatted: they are nested too deep, or their text raises."""
    shown = (type(error), error, trace or error.__traceback__)
    try:
        logger.error(message, *args, exc_info=shown, extra=facts)
    except BaseException:
        logger.error(f"{message}: %s", *args, type(error).__name__, extra=facts)


class TextFormat(logging.Formatter):
    """Text: one line, and a traceback indented below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}"
        line = escaped(masked(line))
        where = _where(record)
        if where:
            line += f" [{' '.join(f'{name}={escaped(value)}' for name, value in where.items())}]"
        if record.exc_info:
            trace = masked(self.formatException(record.exc_info))
            # Indented, so that quoted text cannot imitate a line.
            line += "".join(f"\n  {escaped(part)}" for part in trace.splitlines())
        return line


class JsonFormat(logging.Formatter):
    """JSON: one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds, milliseconds = int(record.created), int(record.msecs)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        # Fields of `extra` come first: they cannot replace ours.
        facts = hidden_value(getattr(record, "facts", {}), masked, hidden="***")
        fields: dict[str, Any] = {
            **facts,
            "time": f"{moment}.{milliseconds:03d}Z",
            "level": record.levelname.lower(),
            "message": masked(record.getMessage()),
            "logger": record.name,
            **_where(record),
        }
        if record.exc_info:
            fields["exception"] = masked(self.formatException(record.exc_info))
        # JSON escapes C0 controls; other characters that could end a line are escaped here.
        try:
            return json_escaped(msgspec.json.encode(fields).decode())
        except UnicodeEncodeError:
            # A lone surrogate, such as in the name of a file.
            import json

            return json.dumps(msgspec.to_builtins(fields), separators=(",", ":"))


def configure(
    form: str = "text", level: str = "info", *, access: bool = False, stream: TextIO | None = None
) -> None:
    """Configure the log of this process, unless it is configured already."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(stream or sys.stderr)
        handler.setFormatter(JsonFormat() if form == "json" else TextFormat())
        root.addHandler(handler)
    number = logging.getLevelNamesMapping()[level.upper()]
    # Debug lines of libraries quote requests and headers: they are never written.
    root.setLevel(max(number, logging.INFO))
    logging.getLogger("dragoman").setLevel(number)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    logging.getLogger("dragoman.access").setLevel(logging.INFO if access else logging.CRITICAL)
