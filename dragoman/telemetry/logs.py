"""Lines of log: for people or as JSON, with the trace and the task they belong to.

Whatever a line quotes cannot end it, colour it or pass for another one, and what looks like a
credential is not in it.
"""

import json
import logging
import sys
import time
from typing import Any, TextIO

import msgspec

from dragoman.model.controls import ALL, json_escaped
from dragoman.security.secret_text import hidden_text, hidden_value
from dragoman.telemetry import tracing

# Others that would say at length what concerns nobody here, requests and all.
_LOUD = ("uvicorn", "asyncio", "urllib3", "opentelemetry")


def masked(text: str) -> str:
    """Return a text without what is named like a credential or looks like one."""
    return hidden_text(text, "***")


def escaped(text: str) -> str:
    """Return a text that is one line and stays one."""
    return ALL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _where(record: logging.LogRecord) -> dict[str, str]:
    """Return what a line belongs to."""
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
    # What `extra` says wins: it is about this very line.
    for name in ("task_id", "agent", "incident"):
        said: Any = getattr(record, name, None)
        if said:
            where[name] = str(said)
    return where


def tell(
    logger: logging.Logger, message: str, *args: Any, error: BaseException, **facts: Any
) -> None:
    """Log what code of others raised. Some of it cannot be shown: it is nested too deep, or its
    own text raises."""
    try:
        logger.error(message, *args, exc_info=error, extra=facts)
    except BaseException:
        logger.error(f"{message}: %s", *args, type(error).__name__, extra=facts)


class TextFormat(logging.Formatter):
    """For people: one line, and a traceback indented below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}"
        line = escaped(masked(line))
        where = _where(record)
        if where:
            line += f" [{' '.join(f'{name}={escaped(value)}' for name, value in where.items())}]"
        if record.exc_info:
            trace = masked(self.formatException(record.exc_info))
            # Indented, so that nothing an exception quotes passes for a line of its own.
            line += "".join(f"\n  {escaped(part)}" for part in trace.splitlines())
        return line


class JsonFormat(logging.Formatter):
    """For programs: one object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds, milliseconds = int(record.created), int(record.msecs)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        # What `extra` says in so many members; it cannot pass for any of ours.
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
        # JSON escapes what is below a space; the rest of what could end a line is escaped here.
        try:
            return json_escaped(msgspec.json.encode(fields).decode())
        except UnicodeEncodeError:
            # Half a character, such as in the name of a file.
            return json.dumps(msgspec.to_builtins(fields), separators=(",", ":"))


def configure(
    form: str = "text", level: str = "info", *, access: bool = False, stream: TextIO | None = None
) -> None:
    """Write the log of this process, unless something was set up for it before."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(stream or sys.stderr)
        handler.setFormatter(JsonFormat() if form == "json" else TextFormat())
        root.addHandler(handler)
    number = logging.getLevelNamesMapping()[level.upper()]
    # What others say at debug level is about requests and their headers: it stays unsaid.
    root.setLevel(max(number, logging.INFO))
    logging.getLogger("dragoman").setLevel(number)
    for name in _LOUD:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    logging.getLogger("dragoman.access").setLevel(logging.INFO if access else logging.CRITICAL)
