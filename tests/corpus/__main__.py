"""Runs the corpus and prints every deviation: `python -m tests.corpus [CATEGORY...] [--keep]`.

The bad-input corpus is generated requests that must be refused, and the runner that judges.
Generators are seeded and deterministic; a case is named by the rule it breaks, so that a deviation
prints its reproduction. What a good request does is tested elsewhere.

With --keep the smallest case of each deviation becomes a regression file.
"""

from __future__ import annotations

import asyncio
import sys
import time

from tests.corpus import regressions
from tests.corpus.run import GENERATORS, generated, run
from tests.corpus.server import in_process


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
