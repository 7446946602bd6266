"""The options every command understands, once: flag, variable, default and help.

The environment names, the keys of configuration files, the help texts and `config show` all derive
from this table. A value is text wherever it comes from, and is read in one way.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from dragoman.model.duration import duration
from dragoman.model.patterns import late_pattern

PREFIX = "A2ACLI_"
_EXPOSED = "A flag is visible in the process list and the shell history: prefer {}."
_NAME = late_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_BINDINGS = {"jsonrpc": "JSONRPC", "rest": "HTTP+JSON", "http+json": "HTTP+JSON", "grpc": "GRPC"}
_SWITCH = {"true": True, "1": True, "yes": True, "on": True} | {
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


# How texts become values; a ValueError says what is wrong with one


def text(value: str) -> str:
    """Take it as it is."""
    return value


def switch(value: str) -> bool:
    """Read a boolean as people write it."""
    if (found := _SWITCH.get(value.lower())) is None:
        raise ValueError("must be true or false")
    return found


def interval(value: str) -> float:
    """Read the time between two polls."""
    seconds = duration(value)
    if seconds < 0.1:
        raise ValueError("must be at least 100ms")
    return seconds


FORMATS = ("text", "json", "table")


def output_format(value: str) -> str:
    """Read the name of a format."""
    if value not in FORMATS:
        more = "; lines of JSON are -o json --stream" if value == "jsonl" else ""
        raise ValueError(f"must be text, json or table{more}")
    return value


def binding(value: str) -> str:
    """Read the name of a binding, ours or the card's."""
    if (found := _BINDINGS.get(value.lower())) is None:
        raise ValueError("must be jsonrpc, rest or grpc")
    return found


def version(value: str) -> str:
    """Read a protocol version."""
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", value, re.ASCII):
        raise ValueError("must be a version such as 1.0 or 0.3")
    return ".".join(value.split(".")[:2])


def json_object(value: str) -> dict[str, Any]:
    """Read a JSON object."""
    import json

    try:
        found = json.loads(value)
    except ValueError:
        raise ValueError("must be a JSON object") from None
    if not isinstance(found, dict):
        raise ValueError("must be a JSON object")
    return cast(dict[str, Any], found)


def service_parameter(value: str) -> tuple[str, str]:
    """Read `name:value`; the value is a secret until proven otherwise, so no error quotes it."""
    found = re.match(r"[^:=]*[:=]", value)
    if found is None:
        raise ValueError("must be name:value")
    name, content = value[: found.end() - 1].strip(), value[found.end() :].strip()
    if not _NAME.fullmatch(name) or re.search("[\x00-\x08\x0a-\x1f\x7f]", content):
        raise ValueError("must be name:value with a plain name and no line breaks")
    if name.lower() == "a2a-version":
        raise ValueError("cannot name A2A-Version: --a2a-version does")
    return name, content


def separated(value: str) -> list[str]:
    """Take a comma list apart, as variables and files have it."""
    return [piece.strip() for piece in value.split(",") if piece.strip()]


def parameters(value: str) -> list[str]:
    """Take a comma list of `name:value` apart; a comma inside a value stays in it."""
    found: list[str] = []
    for piece in value.split(","):
        if found and not re.match(r"\s*[!#$%&'*+.^_`|~0-9A-Za-z-]+[:=]", piece):
            found[-1] += f",{piece}"
        else:
            found.append(piece.strip())
    return [piece for piece in found if piece]


# A value of each kind that only some texts are, for the next command after one that is none.
_EXAMPLES: dict[Callable[[str], Any], str] = {
    output_format: "json",
    duration: "30s",
    interval: "2s",
    binding: "jsonrpc",
    version: "1.0",
    service_parameter: "<name:value>",
}


class OptionRow(NamedTuple):
    """One global option."""

    name: str
    help: str
    read: Callable[[str], Any] = text
    # As a text; None: there is none, or each command has its own.
    default: str | None = None
    metavar: str = ""
    short: str = ""
    # Other spellings of the flag, which help does not show.
    aliases: Sequence[str] = ()
    # How a variable's text becomes several; None: the option has one value.
    apart: Callable[[str], list[str]] | None = None
    is_secret: bool = False
    # Whether it may come from the environment, and from files.
    in_environment: bool = True
    in_files: bool = True
    # The default, in words.
    otherwise: str = ""

    @property
    def example(self) -> str:
        """Return a value that it takes; empty: any text is one."""
        return _EXAMPLES.get(self.read, "")

    @property
    def flag(self) -> str:
        """Return the long flag."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """Return the environment name; an alias has none of its own."""
        return PREFIX + self.name.upper().replace("-", "_")

    @property
    def field(self) -> str:
        """Return the name in Python."""
        return "at_once" if self.name == "async" else self.name.replace("-", "_")

    @property
    def is_switch(self) -> bool:
        """Tell whether the bare flag means true."""
        return self.read is switch


ROWS: tuple[OptionRow, ...] = (
    OptionRow(
        "agent-card",
        "The agent: host, URL, card file or file: URL, or @name in the catalog of "
        "$DRAGOMAN_CATALOG.",
        metavar="<ref>",
        short="-a",
    ),
    OptionRow(
        "output",
        "Format of stdout; on a terminal lists are tables.",
        output_format,
        "text",
        metavar="<text|json|table>",
        short="-o",
    ),
    OptionRow(
        "stream",
        "Show each event as it comes; with -o json one compact object per line.",
        switch,
        "false",
        aliases=("--follow",),
        in_environment=False,
        in_files=False,
    ),
    OptionRow(
        "wait",
        "Wait until the task ends or asks something.",
        switch,
        aliases=("--watch",),
        otherwise="true for send, false for task get",
    ),
    OptionRow(
        "async",
        "Return the ids at once.",
        switch,
        "false",
        aliases=("--return-immediately", "--no-wait"),
    ),
    OptionRow("poll-interval", "Time between two polls.", interval, "2s", metavar="<duration>"),
    OptionRow(
        "timeout",
        "Budget of the whole command; 0 is no limit.",
        duration,
        "0",
        metavar="<duration>",
    ),
    OptionRow("context-id", "The context to continue, or to list.", metavar="<id>"),
    OptionRow("task-id", "The task to continue.", metavar="<id>"),
    OptionRow(
        "transport",
        "Preferred binding, first one first: jsonrpc, rest, grpc. Repeatable.",
        binding,
        metavar="<binding>",
        apart=separated,
        otherwise="the card's order",
    ),
    OptionRow(
        "a2a-version",
        "Protocol version to speak.",
        version,
        metavar="<v>",
        otherwise="the highest common one; below 1.0 only where the agent has nothing newer",
    ),
    OptionRow(
        "strict-version",
        "Refuse an agent that offers nothing from 1.0 on, unless --a2a-version names a version.",
        switch,
        "false",
    ),
    OptionRow(
        "bearer",
        f"Bearer token for a scheme the card declares. {_EXPOSED.format('A2ACLI_BEARER')}",
        metavar="<token>",
        is_secret=True,
    ),
    OptionRow(
        "api-key",
        f"API key for a scheme the card declares. {_EXPOSED.format('A2ACLI_API_KEY')}",
        metavar="<key>",
        is_secret=True,
    ),
    OptionRow(
        "svc-param",
        "Service parameter, sent as a header with every request. Repeatable.",
        service_parameter,
        metavar="<k:v>",
        apart=parameters,
        is_secret=True,
    ),
    OptionRow("metadata", "Metadata of the request, a JSON object.", json_object, metavar="<json>"),
    OptionRow("insecure", "Do not verify TLS certificates; warns every time.", switch, "false"),
    OptionRow(
        "config",
        "Read this file instead of the nearest .env.",
        metavar="<file>",
        in_files=False,
    ),
    OptionRow(
        "verbose", "Show all that was exchanged: history, metadata (text only).", switch, "false"
    ),
    OptionRow("debug", "Show details on stderr: timing, choices, wire.", switch, "false"),
    OptionRow("client-cert", "Certificate for mutual TLS (PEM).", metavar="<path>"),
    OptionRow("client-key", "Its private key (PEM), if in a file of its own.", metavar="<path>"),
    OptionRow(
        "ca-cert", "Trust these certificate authorities and no others (PEM).", metavar="<path>"
    ),
    OptionRow(
        "extension",
        "Extension to ask for. Repeatable.",
        metavar="<uri>",
        apart=separated,
    ),
    OptionRow(
        "trust-origin",
        "Further origin that credentials may go to. Repeatable.",
        metavar="<origin>",
        apart=separated,
    ),
)
BY_NAME = {row.name: row for row in ROWS}
