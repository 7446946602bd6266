"""Identifiers: what they look like, who makes them, and whom a call speaks for.

Ids made here are UUIDv7: ordered by creation, so that a store appends at the end of its index,
and with 62 random bits, so that nobody guesses one.
"""

import os
import re
import time
from typing import NewType

import msgspec

TaskId = NewType("TaskId", str)
ContextId = NewType("ContextId", str)
MessageId = NewType("MessageId", str)

MAX_ID_LENGTH = 256
_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]{1,256}\Z")


def is_id(text: str) -> bool:
    """Tell whether a peer may use this text as an id: visible ASCII, at most 256 characters."""
    return _VISIBLE_ASCII.match(text) is not None


class _Clock:
    """Time in steps of 1/4096 millisecond that never repeats within a process."""

    last = 0

    @classmethod
    def step(cls) -> int:
        cls.last = max(cls.last + 1, (time.time_ns() << 12) // 1_000_000)
        return cls.last


def new_id() -> str:
    """Return a UUIDv7 that no one can guess; ids of one process sort by their making."""
    step = _Clock.step()
    noise = int.from_bytes(os.urandom(8)) & 0x3FFFFFFFFFFFFFFF
    value = (step >> 12 << 80) | (0x7 << 76) | ((step & 0xFFF) << 64) | (0b10 << 62) | noise
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Caller(msgspec.Struct, frozen=True):
    """Whom a call speaks for. Identity comes from the transport, never from a payload."""

    owner: str = ""
    authenticated: bool = False


ANONYMOUS = Caller()


class Scope(msgspec.Struct, frozen=True):
    """The room a task lives in: nothing in one scope is visible from another."""

    agent: str = ""
    tenant: str = ""
    owner: str = ""
