"""What the server runs with: its settings and where they come from, and its store."""

import os
from typing import Any, Literal, cast

from dragoman.config import (
    ADDRESSES,
    FIELDS,
    SECRETS,
    Settings,
    source_of,
    value_of,
    without_password,
)
from dragoman.security.secret_text import HIDDEN
from dragoman.server.operator.shapes import Shape
from dragoman.server.operator.table import OperatorAsk, OperatorRows

ENDPOINTS = OperatorRows()
# Bytes left beside a file below which an operator has to make room, as `dragoman doctor` says.
_LITTLE_SPACE = 512 * 1024 * 1024


class SettingItem(Shape, frozen=True):
    """A setting: what holds, and where it comes from."""

    name: str
    group: str
    # As people write it; of a secret only whether it is set.
    value: str
    default: str
    source: Literal["default", "environment", "file", "given"]
    about: str


class SettingItems(Shape, frozen=True):
    """All settings."""

    items: list[SettingItem]


class StoreFacts(Shape, frozen=True):
    """What tasks are kept in."""

    # Without a password.
    name: str
    kind: Literal["sqlite", "postgresql", "memory"]
    bytes: int
    # Left beside the file; null: that is not known here.
    free_bytes: int | None
    is_almost_full: bool
    # By how many bytes it grows in an hour, as the last minutes tell; null: not known yet.
    bytes_per_hour: int | None
    # The last migration that was run on it; 0: it has none.
    schema: int
    tasks: int
    # How long, and how many, finished tasks are kept.
    retain_seconds: int
    retain_tasks: int


@ENDPOINTS.add("GET", "/settings", is_for_operators=True)
async def list_settings(ask: OperatorAsk) -> SettingItems:
    """List all settings, and where each comes from; of a secret only whether it is set."""
    settings = ask.site.settings
    return SettingItems(items=[_setting(settings, name) for name in FIELDS])


def _setting(settings: Settings, name: str) -> SettingItem:
    field = FIELDS[name]
    return SettingItem(
        name=name,
        group=field.group,
        value=_text(name, value_of(settings, name)),
        default=_text(name, field.default),
        source=source_of(settings, name, os.environ),
        about=field.meta.description or "",
    )


def _text(name: str, value: Any) -> str:
    if name in SECRETS:
        return HIDDEN if value else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(map(str, cast("list[Any]", value)))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return without_password(text) if name in ADDRESSES else text


@ENDPOINTS.add("GET", "/store", is_for_operators=True)
async def read_store(ask: OperatorAsk) -> StoreFacts:
    """Read what the store is, how large, and how much room is left beside it."""
    settings, size = ask.site.settings, await ask.store.size()
    kind = "postgresql" if settings.is_postgres else "sqlite"
    if settings.stores.location == "memory:":
        kind = "memory"
    counts = await ask.store.counts()
    return StoreFacts(
        name=settings.store_name,
        kind=kind,
        bytes=size.used,
        free_bytes=size.free,
        bytes_per_hour=ask.live.growth(),
        schema=size.schema,
        is_almost_full=size.free is not None and size.free < _LITTLE_SPACE,
        tasks=sum(counts.values()),
        retain_seconds=settings.stores.retain_seconds,
        retain_tasks=settings.stores.retain_tasks,
    )
