"""`python -m bench`: run the measures and print the table.

Exits with 1 if Dragoman answered any call wrongly: a rate with errors in it is not a result.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

import uvloop

from dragoman.testing.processes import CannotStart

from . import readme
from .measures import ALL, FULL, QUICK, Bench
from .report import document, errors, table
from .servers import HERE, OURS, PEER_KINDS

README = HERE.parent / "README.md"


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="end within 50 seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--readme", action="store_true", help="bring README.md's table up to date")
    parser.add_argument("--only", metavar="NAMES", help=f"comma-separated, of: {', '.join(ALL)}")
    parser.add_argument("--alone", action="store_true", help="measure no peers")
    chosen = parser.parse_args(words)
    chosen.only = [name.strip() for name in chosen.only.split(",")] if chosen.only else list(ALL)
    if unknown := [name for name in chosen.only if name not in ALL]:
        parser.error(f"unknown measure: {', '.join(unknown)}")
    return chosen


def main(words: list[str]) -> int:
    chosen = arguments(words)
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as root:
        kinds = [
            kind for kind in PEER_KINDS if not (chosen.alone or (chosen.quick and kind.on_postgres))
        ]
        bench = Bench(QUICK if chosen.quick else FULL, kinds, Path(root))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(bench.run(chosen.only))
        except CannotStart as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
    print(table(bench.figures, bench.notes))
    if chosen.json:
        chosen.json.write_text(json.dumps(document(bench.figures, bench.notes), indent=2) + "\n")
    if chosen.readme:
        readme.update(README, bench.figures)
    return 1 if any(where.endswith(OURS.name) for where, *_ in errors(bench.figures)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
