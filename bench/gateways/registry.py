"""`python -m bench.gateways.registry`: how long a search among 10,000 registered agents takes.

In one process, as the gateway does it: agents of some three skills each in memory, a score for
each, and nothing remembered from one search to the next. A figure is the least of the rounds in
processor time, which is what other load on the machine changes least, beside the medians in
processor time and by the clock: the latter is what a caller waits. The exit code is 1 if one of
the former is above five milliseconds.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from dragoman.gateway.registry.registered import Registered
from dragoman.gateway.registry.search import Search, SearchIndex
from dragoman.model.card import AgentSkill

AGENTS = 10_000
MOST_MS = 5.0
WORDS = [f"word{number:04}" for number in range(5_000)]
TAGS = [f"tag{number:02}" for number in range(100)]

SEARCHES: dict[str, Search] = {
    "everything": Search(),
    "everything, as a caller": Search(viewer="ada"),
    "the last page": Search(limit=100, offset=AGENTS - 100),
    "a rare word": Search(text="word0007"),
    "a word that all have": Search(text="agent"),
    "three words": Search(text="agent word0007 does"),
    "half a word": Search(text="word0"),
    "a part of every name": Search(text="gent-"),
    "a part of some names": Search(text="gent-77"),
    "a letter": Search(text="e"),
    "a word that none has": Search(text="no-agent-has-this"),
    "a skill": Search(skill="skill-77"),
    "two tags": Search(tags=["tag01", "tag02"]),
    "a category": Search(category="tag03"),
    "trust": Search(min_trust=80),
    "price": Search(max_price=5_000_000),
    "status": Search(status="online"),
    "all of it": Search(
        text="agent does",
        tags=["tag01", "tag02", "tag03"],
        min_trust=20,
        max_price=8_000_000,
        status="online",
        viewer="ada",
    ),
}


def agents(noise: random.Random) -> list[Registered]:
    """Return agents as people describe them: some words, a few skills and tags."""
    return [
        Registered(
            id=f"0190{number:028x}",
            name=f"agent-{number}",
            title=f"Agent {number}",
            description=" ".join(noise.choices(WORDS, k=20)),
            url=f"https://agent-{number}.example.com/",
            skills=[
                AgentSkill(
                    id=f"skill-{noise.randrange(500)}",
                    name=" ".join(noise.choices(WORDS, k=2)),
                    description="Does " + " ".join(noise.choices(WORDS, k=10)),
                    tags=noise.choices(TAGS, k=2),
                )
                for _ in range(3)
            ],
            tags=noise.choices(TAGS, k=3),
            price=noise.randrange(10_000_000),
            status=noise.choice(["online", "online", "online", "degraded", "offline"]),
        )
        for number in range(AGENTS)
    ]


class Timed:
    """How long something takes, in milliseconds."""

    def __init__(self) -> None:
        self._work: list[float] = []
        self._wall: list[float] = []

    def run(self, what: Callable[[], object]) -> None:
        work, wall = time.process_time(), time.perf_counter()
        what()
        self._work.append(1e3 * (time.process_time() - work))
        self._wall.append(1e3 * (time.perf_counter() - wall))

    @property
    def figures(self) -> dict[str, Any]:
        return {"least": min(self._work), "work": median(self._work), "wall": median(self._wall)}


def measure(rounds: int) -> dict[str, dict[str, Any]]:
    """Return the figures of each search."""
    noise = random.Random(7)
    found = agents(noise)
    scores = {agent.id: noise.randrange(101) for agent in found}

    def score(id: str) -> int:
        return scores.get(id, 50)

    def trust(id: str) -> int:
        # As deep as a gateway's is.
        return score(id)

    index = SearchIndex()
    figures: dict[str, dict[str, Any]] = {}
    loading = Timed()
    loading.run(lambda: index.fill(found))
    figures["load"] = loading.figures | {"found": AGENTS}
    for name, search in SEARCHES.items():
        timed = Timed()
        for _ in range(rounds):
            timed.run(lambda search=search: index.search(search, trust))
        figures[name] = timed.figures | {"found": index.search(search, trust).total}
    return figures


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.gateways.registry", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(words)
    figures = measure(chosen.rounds)
    if chosen.json:
        print(json.dumps(figures, indent=2))
    else:
        print(f"{AGENTS} agents, milliseconds, least and medians of {chosen.rounds} rounds")
        for name, one in figures.items():
            line = (
                f"{one['least']:9.2f}  median {one['work']:7.2f}  by the clock {one['wall']:7.2f}"
            )
            print(f"{name:25}{line}  found {one['found']}")
    slow = [n for n, one in figures.items() if n != "load" and one["least"] > MOST_MS]
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
