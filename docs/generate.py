"""Fill the parts of the documents that the code knows better: `python docs/generate.py`.

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. NAME is a table of this file,
or the path of a file that is quoted whole. A test fails when a part is stale.
"""

import json
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from msgspec import Meta
from msgspec.structs import fields

from dragoman import errors
from dragoman.cli.failures import CODES, EXITS
from dragoman.cli.main import COMMANDS, cli
from dragoman.cli.options import ROWS as OPTIONS
from dragoman.config import FIELDS, PREFIX, Settings
from dragoman.dialects import errors as error_table
from dragoman.dialects import operations as operation_table
from dragoman.dialects import push, reading, v1_0
from dragoman.engine.receivers import MAX_PUSHES
from dragoman.gateway.api.table import Endpoint
from dragoman.http import request
from dragoman.http.deadlines import (
    BODY_SECONDS,
    BYTES_PER_SECOND,
    HEAD_SECONDS,
    IDLE_SECONDS,
    WRITE_SECONDS,
)
from dragoman.model.identity import MAX_ID_LENGTH
from dragoman.transports import json_text

ROOT = Path(__file__).resolve().parent.parent
SERVE = cli.get_command(click.Context(cli), "serve")
assert SERVE is not None
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PART = re.compile(
    r"^<!-- begin (?P<name>\S+) -->\n.*?^<!-- end (?P=name) -->$", re.MULTILINE | re.DOTALL
)


_RATE = f"{BYTES_PER_SECOND // 1024} KiB"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def settings() -> str:
    """Return every setting by group: name, type, default, environment name, option and meaning."""
    parts: list[str] = []
    for group in fields(Settings):
        rows = [
            (
                f"`{field.group}.{field.field}`",
                type_of(field.type, field.meta),
                shown(field.default),
                f"`{PREFIX}{name.upper()}`",
                option_of(name),
                field.meta.description or "",
            )
            for name, field in FIELDS.items()
            if field.group == group.name
        ]
        header = ("setting", "type", "default", "environment", "option", "meaning")
        parts.append(f"### `{group.name}`\n{group.type.__doc__}\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def type_of(kind: Any, meta: Meta) -> str:
    """Return a type and its bounds in words."""
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    bounds = [
        f"{sign} {bound:,}"
        for sign, bound in (("≥", meta.ge), (">", meta.gt), ("≤", meta.le))
        if bound is not None
    ]
    name = "list" if typing.get_origin(kind) is list else kind.__name__
    return " ".join([name, *bounds])


def shown(default: Any) -> str:
    """Return a default as one would type it."""
    if isinstance(default, bool):
        return "`true`" if default else "`false`"
    if isinstance(default, list):
        default = ",".join(typing.cast("list[str]", default))
    return f"`{default}`" if default != "" else "empty"


def option_of(name: str) -> str:
    """Return the option of `dragoman serve` for a setting, if there is one."""
    for parameter in SERVE.params:
        if isinstance(parameter, click.Option) and parameter.name == name:
            return f"`{parameter.opts[0]}`"
    return ""


def limits() -> str:
    """Return what cannot be set."""
    return table(
        ("what", "limit"),
        [
            ("an id from a peer", f"{MAX_ID_LENGTH} visible ASCII characters"),
            ("parts in a message", f"1 to {reading.MAX_PARTS:,}"),
            ("one `metadata` object", f"{reading.MAX_METADATA_BYTES // 1024} KiB of JSON"),
            ("nesting of a JSON document", f"{json_text.MAX_DEPTH} levels"),
            ("members of one JSON object", f"{json_text.MAX_MEMBERS:,}"),
            ("length of one JSON number", f"{json_text.MAX_NUMBER_LENGTH} characters"),
            ("path and query of a URL", f"{request.MAX_URL_BYTES // 1024} KiB"),
            (
                "headers of a request",
                f"{request.MAX_HEADERS}, {request.MAX_HEADER_BYTES // 1024} KiB in all",
            ),
            (
                "`acceptedOutputModes`",
                f"{reading.MAX_MEDIA_TYPES} of {reading.MAX_MEDIA_TYPE_LENGTH} characters",
            ),
            (
                "tasks on one page of a list",
                f"1 to {v1_0.MAX_PAGE_SIZE}, {v1_0.DEFAULT_PAGE_SIZE} by default",
            ),
            ("time for a TLS handshake, and for the head of a request", _seconds(HEAD_SECONDS)),
            (
                "time for a body",
                f"{_seconds(BODY_SECONDS)}; longer while {_RATE} a second arrive",
            ),
            (
                "time to read a plain answer",
                f"{_seconds(WRITE_SECONDS)}, and more for its size at that rate",
            ),
            ("a connection without a request", _seconds(IDLE_SECONDS)),
            ("receivers of one task", str(MAX_PUSHES)),
            ("address of a receiver", f"{push.MAX_URL_LENGTH:,} characters"),
            ("token of a receiver", f"{push.MAX_TOKEN_LENGTH:,} characters"),
            ("credentials of a receiver", f"{push.MAX_CREDENTIALS_LENGTH:,} characters"),
        ],
    )


def _seconds(number: float) -> str:
    return f"{number:.0f} s"


def error_rows() -> str:
    """Return every error a peer can see, on every wire."""
    rows = [
        (
            f"`{row.error.__name__}`",
            " ".join((row.error.__doc__ or "").split()),
            str(row.code),
            str(row.code_0_x or row.code),
            str(row.http),
            str(row.http_1_0_0 or row.http),
            str(row.http_0_x or row.http),
            f"`{row.grpc}`",
            f"`{row.reason}`",
        )
        for row in error_table.ROWS
    ]
    header = ("class", "message", "code, 1.0", "code, 0.x", "HTTP", "HTTP, 1.0.0", "HTTP, 0.3",
              "gRPC", "reason")  # fmt: skip
    return table(header, rows)


def error_tree() -> str:
    """Return the tree of errors as its module draws it."""
    drawn = [line[4:] for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    return "\n".join(["```text", *drawn, "```"])


def operations() -> str:
    """Return every operation under its name in each version and binding."""
    rows: list[tuple[str, ...]] = []
    for row in operation_table.ROWS:
        rows.append(
            (
                f"`{row.v1}`",
                "<br>".join(f"`{verb} {row.path}`" for verb in row.verbs),
                "<br>".join(f"`{name}`" for name in row.v0) or "not in 0.x",
                "yes",
            )
        )
    return table(("1.0, JSON-RPC", "1.0, REST", "0.3 and 0.2, JSON-RPC", "offered"), rows)


def cli_commands() -> str:
    """Return every command, and what it is for."""
    rows = [(f"`{name}`", place.about, place.section) for name, place in sorted(COMMANDS.items())]
    return table(("command", "does", "for"), rows)


def cli_options() -> str:
    """Return the options that every command has."""
    rows = [
        (
            ", ".join(f"`{flag}`" for flag in (row.short, row.flag) if flag),
            f"`{row.variable}`" if row.in_environment else "",
            row.help,
            f"`{row.default}`" if row.default else row.otherwise,
        )
        for row in OPTIONS
    ]
    return table(("option", "variable", "meaning", "default"), rows)


def cli_errors() -> str:
    """Return every error class with its code on the command line and its exit code."""
    rows = [
        (f"`{kind.__name__}`", f"`{code}`", str(EXITS.get(code, 1))) for kind, code in CODES.items()
    ]
    return table(("error", "code", "exit"), rows)


def api_endpoints() -> str:
    from dragoman.gateway.api.api import TABLE

    rows = [
        (f"`{row.verb} {row.path}`", row.summary, _key_scope(row), str(row.status))
        for row in TABLE.endpoints
    ]
    return table(("endpoint", "does", "key of an agent", "status"), rows)


def _key_scope(row: Endpoint) -> str:
    """Return what the key of an agent has to be for."""
    from dragoman.gateway.registry.agent_keys import SCOPES
    from dragoman.http.routes import Access

    if row.access is not Access.CALLER:
        return "none"
    # Only a key that is for everything has a scope that no key can be given.
    return f"`{row.scope}`" if row.scope in SCOPES else "`*`"


def api_codes() -> str:
    from dragoman.gateway.api.envelope import STATUSES

    return table(
        ("code", "status"), [(f"`{code}`", str(status)) for code, status in STATUSES.items()]
    )


def quote(path: str) -> str:
    """Return a file as a block of code."""
    return f"```python\n{(ROOT / path).read_text(encoding='utf-8').strip()}\n```"


# The columns of the peers, in the order of a conversation.
_COLUMNS = [
    "card",
    "send",
    "stream",
    "get",
    "list",
    "cancel",
    "subscribe",
    "ask",
    "files",
    "push",
    "errors",
    "auth",
]
_DIRECTIONS = (
    "it calls our server",
    "it calls our gateway",
    "our client calls it",
    "our gateway calls it",
)


def interop() -> str:
    """Return who works with us in which direction, as the tests of the peers found it."""
    rows: list[dict[str, str]] = json.loads((ROOT / "docs" / "interop.json").read_text())
    notes: dict[str, int] = {}
    lines: list[tuple[str, ...]] = []
    # Ours are the measure of the others, not a peer.
    keys = {(row["direction"], row["peer"], row["speaks"]): None for row in rows}
    named = [key for key in keys if key[1] != "dragoman"]
    for key in sorted(named, key=lambda key: (key[1], _DIRECTIONS.index(key[0]), key[2])):
        found = [row for row in rows if (row["direction"], row["peer"], row["speaks"]) == key]
        cells = [
            _cell([row for row in found if row["operation"] == one], notes) for one in _COLUMNS
        ]
        lines.append((key[1], key[2], key[0], *cells))
    told = "\n".join(f"{number}. {reason}" for reason, number in notes.items())
    return f"{table(('peer', 'speaks', 'direction', *_COLUMNS), lines)}\n\n{told}"


def _cell(rows: list[dict[str, str]], notes: dict[str, int]) -> str:
    if not rows:
        return ""
    reasons = dict.fromkeys(row["reason"] for row in rows if row["reason"])
    marks = [str(notes.setdefault(reason, len(notes) + 1)) for reason in reasons]
    outcomes = {row["outcome"] for row in rows}
    word = "not yet" if "owed" in outcomes else "yes" if "passed" in outcomes else "no"
    return f"{word} ({', '.join(marks)})" if marks else word


PARTS: dict[str, Callable[[], str]] = {
    "api-endpoints": api_endpoints,
    "api-codes": api_codes,
    "cli-commands": cli_commands,
    "cli-options": cli_options,
    "cli-errors": cli_errors,
    "settings": settings,
    "limits": limits,
    "error-rows": error_rows,
    "error-tree": error_tree,
    "operations": operations,
    "interop": interop,
}


def filled(text: str) -> str:
    """Return a document with its parts as the code has them."""

    def part(found: re.Match[str]) -> str:
        name = found["name"]
        content = PARTS[name]() if name in PARTS else quote(name)
        return f"<!-- begin {name} -->\n{content}\n<!-- end {name} -->"

    return PART.sub(part, text)


def main() -> None:
    """Write every document anew."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        document.write_text(filled(text), encoding="utf-8")


if __name__ == "__main__":
    main()
