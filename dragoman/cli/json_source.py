"""JSON that a command takes from a file, from stdin, or as it is written on the command line."""

import json
import sys
from pathlib import Path
from typing import Any

from dragoman.cli.failures import usage
from dragoman.cli.invocation import Invocation, is_terminal

_EXAMPLE = '{"name": "value"}'


def read_json(run: Invocation, value: str, name: str) -> Any:
    """Return what a path, `-` or JSON itself holds; `name` is what the command line calls it."""
    if value == "-":
        if not sys.stdin or is_terminal(sys.stdin):
            raise usage(f"{name} - reads stdin, and nothing writes to it")
        place, body = "stdin", sys.stdin.buffer.read()
    elif value.lstrip().startswith(("{", "[")):
        place, body = name, value.encode()
    else:
        place, body = value, read_file(run.folder / Path(value).expanduser(), value)
    try:
        return json.loads(body, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        # Where, and not what: it may be a secret.
        where = f"{error.msg}, line {error.lineno} column {error.colno}"
        example = f"{name} '{_EXAMPLE}'" if name.startswith("-") else ""
        raise usage(f"{place} is not JSON: {where}", remedy=example) from None
    except ValueError:
        raise usage(f"{place} is not JSON") from None
    except RecursionError:
        raise usage(f"{place} is nested too deep") from None


def read_file(path: Path, name: str) -> bytes:
    """Return what a file holds that the command line names."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise usage(f"{name}: {error.strerror or 'cannot be read'}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)
