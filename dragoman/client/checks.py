"""What a caller can get wrong before anything is sent.

Types are checked where a wrong one would pass for a right one, or fail far from here.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dragoman.egress.errors import EgressRefused
from dragoman.egress.outgoing import checked_headers
from dragoman.errors import ConfigError
from dragoman.model.card import AgentCard


def check_reference(ref: object) -> None:
    """Raise `ConfigError` for what leads to no agent."""
    if not isinstance(ref, str | Path | AgentCard | None):
        raise ConfigError("a reference is a host, a URL, the path of a card file or a card")


def check_list(name: str, values: Iterable[object]) -> None:
    """Raise `ConfigError` for what is no list of strings, a string above all."""
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{name} is a list of strings")


def check_extensions(uris: Iterable[str]) -> None:
    """Raise `ConfigError` for what is no list of URIs."""
    check_list("extensions", uris)
    for uri in uris:
        # They share one header, with commas between them.
        if not uri.isprintable() or not uri.isascii() or not uri or set(uri) & {",", " "}:
            raise ConfigError(f"{uri!r} is not the URI of an extension")


def check_headers(headers: Mapping[Any, Any]) -> None:
    """Raise `ConfigError` for headers that cannot be sent."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"the header {name!r} is no string, or its value is none")
        try:
            checked_headers({name: value})
        except EgressRefused as error:
            raise ConfigError(error.reason) from None


def check_seconds(name: str, value: object) -> None:
    """Raise `ConfigError` for what is no time to wait."""
    if not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is a number of seconds above zero")
