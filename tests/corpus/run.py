"""Runs cases against a server and gathers what deviates, grouped, smallest example first.

Around every category the total of tasks and the agent's run count stand still, and good requests in
between must still be answered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.corpus import boundaries, cursors, envelope, json_text, params, regressions, unicode_ids
from tests.corpus.answer import judge
from tests.corpus.case import Case, distinct
from tests.corpus.server import Server

SEED = 20_261_116
# A good read after every so many bad requests shows which neighbourhood broke the server.
GOOD_EVERY = 500

GENERATORS = {
    1: lambda: json_text.cases(6000, SEED),
    2: lambda: envelope.cases(4500, SEED),
    3: lambda: params.cases(12_000, SEED),
    7: unicode_ids.cases,
    8: boundaries.cases,
    16: lambda: cursors.plain_cases(SEED),
}


@cache
def generated(category: int) -> list[Case]:
    """Return the cases of a category, no request twice."""
    return distinct(GENERATORS[category]())


@dataclass
class Report:
    """What was sent and what went wrong."""

    sent: Counter[str] = field(default_factory=Counter)
    deviations: list[tuple[Case, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.deviations and not self.notes

    def __str__(self) -> str:
        lines = [f"{sum(self.sent.values())} cases: {dict(self.sent)}", *self.notes]
        groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
        for case, problem in self.deviations:
            groups[f"{case.category:02d}/{case.kind}", problem].append(case)
        for (kind, problem), found in sorted(groups.items(), key=lambda item: -len(item[1])):
            smallest = min(found, key=lambda case: len(case.body) + len(case.query))
            lines.append(f"{len(found)} x {kind}: {problem}\n    {smallest}")
        return "\n".join(lines)

    def keep(self, folder: Path) -> None:
        """Write the smallest case of each group as a regression file."""
        groups: dict[tuple[str, str], Case] = {}
        for case, problem in self.deviations:
            key = (case.kind, problem)
            if key not in groups or len(case.body) < len(groups[key].body):
                groups[key] = case
        for case in groups.values():
            regressions.save(folder, case)


async def run(server: Server, cases: Iterable[Case], report: Report | None = None) -> Report:
    """Send every case; nothing may be created, and good requests must go on working."""
    report = Report() if report is None else report
    await server.echo()
    total, runs = await server.total(), server.runs
    for number, case in enumerate(cases):
        report.sent[f"{case.category:02d}/{case.kind}"] += 1
        try:
            problem = judge(case, await server.send(case))
        except TimeoutError:
            problem = "no answer in time"
        except Exception as error:
            problem = f"the server raised {type(error).__name__}: {error}"[:200]
        if problem:
            report.deviations.append((case, problem))
        if number % GOOD_EVERY == GOOD_EVERY - 1 and await server.total() != total:
            report.notes.append(f"a task was created before or at {case.name}")
            total = await server.total()
    if await server.total() != total:
        report.notes.append(f"{await server.total() - total} tasks were created by bad requests")
    if server.runs != runs:
        report.notes.append(f"the agent ran {server.runs - runs} times for bad requests")
    await server.echo()
    return report
