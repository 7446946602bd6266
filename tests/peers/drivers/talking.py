"""What the client of a framework is made to do, by the texts of `servers/playing.py`.

A driver is a class with a method per operation. It is given the address of an agent, and raises
what its library raises; the values below are what every library must come to.
Runs inside a peer's environment, so only the standard library is at hand.
"""

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

EACH_WITHIN = 60.0
UNKNOWN_TASK = "00000000-0000-4000-8000-000000000000"
QUESTION = "Which city?"
CHUNKS = 4
WHOLE = "".join(f"c{i} " for i in range(CHUNKS))
REASON = "It went wrong, as asked."
NOTES = b"some notes"
DESCRIBED = "file notes.txt text/plain some notes"
REPORT = b"\x00\x01 bytes \xff"
DATA = {"city": "Graz", "tags": ["a", "b"]}


@dataclass(frozen=True)
class Place:
    """Where the agent is, and where it is only for those who show the token.

    At `words` is another, whose skill is a generator of the words it is sent.
    """

    address: str
    words: str
    guarded: str
    token: str


def same(found: Any, wanted: Any) -> None:
    """Say what was found instead of what was wanted."""
    if found != wanted:
        raise AssertionError(f"found {found!r} instead of {wanted!r}")


def run(driver: Callable[[Place], Any]) -> None:
    """Do each named operation at each place and print how it went, one JSON line each."""
    asked = json.loads(sys.argv[1])
    # Some libraries print, and what is read is ours alone.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(_run(driver, asked["places"], asked["operations"], out))


async def _run(
    driver: Callable[[Place], Any], places: Any, operations: list[str], out: TextIO
) -> None:
    for name, place in places.items():
        for operation in operations:
            detail = ""
            try:
                method = getattr(driver(Place(**place)), operation.replace("-", "_"))
                async with asyncio.timeout(EACH_WITHIN):
                    await method()
            except Exception:
                detail = traceback.format_exc()
            told = {"scenario": f"{name}/{operation}", "ok": not detail, "detail": detail}
            print(json.dumps(told), file=out, flush=True)
