"""Runs the corpus and prints every deviation: `python -m corpus [CATEGORY...] [--keep]` in tests/.

With --keep the smallest case of each deviation becomes a regression file.
"""

from __future__ import annotations

import asyncio
import sys
import time

from . import regressions
from .run import GENERATORS, generated, run
from .server import in_process


async def main(arguments: list[str]) -> int:
    failed = 0
    for category in [int(a) for a in arguments if a.isdigit()] or GENERATORS:
        cases = generated(category)
        started = time.perf_counter()
        async with in_process() as server:
            report = await run(server, cases)
        print(f"== category {category}: {time.perf_counter() - started:.1f} s")
        print(report)
        failed += not report.clean
        if "--keep" in arguments:
            report.keep(regressions.FOLDER)
    return failed


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
