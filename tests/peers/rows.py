"""Every test of a peer as a row: who calls whom, what for, and how that goes.

`recording.py` writes the rows as a run of the tests found them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from tests.peers import frameworks_as_clients as clients
from tests.peers import test_frameworks_as_agents as agents
from tests.peers import test_interop
from tests.peers.scripts import SCRIPTS
from tests.peers.sides import CLIENT_OWES, GATEWAY_OWES, LIBRARIES, SIDES, Side, gap_of

DRIVERS = Path(__file__).parent / "drivers"

OUR_CLIENT, OUR_GATEWAY = "our client calls it", "our gateway calls it"
OUR_SERVER, GATE = "it calls our server", "it calls our gateway"

# The operation that a script, a scenario or an operation of a driver is about, by how it begins;
# the longest that fits.
OPERATIONS = {
    "connect": "card",
    "card": "card",
    "version": "card",
    "extended-card": "card",
    "send": "send",
    "send-returns-files": "files",
    "send-is-rejected": "errors",
    "direct": "send",
    "sync": "send",
    "many": "send",
    "wait": "send",
    "stream": "stream",
    "last-chunk": "stream",
    "get": "get",
    "list": "list",
    "cancel": "cancel",
    "subscrib": "subscribe",
    "two-subscribers": "subscribe",
    "ask": "ask",
    "multi-turn": "ask",
    "file": "files",
    "text-file": "files",
    "array": "files",
    "push": "push",
    "fail": "errors",
    "unknown": "errors",
    "finished": "errors",
    "refusal": "errors",
    "auth": "auth",
}


@dataclass(frozen=True)
class Row:
    """One thing that one side wants of the other, and how that went."""

    peer: str
    speaks: str
    direction: str
    operation: str
    what: str
    # passed, owed (it should pass, and does not yet) or missing (the peer does not have it).
    outcome: str
    reason: str = ""
    # The test that tells, as pytest names it; empty where there is nothing to run.
    test: str = ""


def operation_of(what: str) -> str:
    return OPERATIONS[max((one for one in OPERATIONS if what.startswith(one)), key=len)]


def rows() -> list[Row]:
    """Return every row with the outcome that its test demands."""
    return sorted(
        [*of_clients(), *of_sides(), *of_gateway(), *of_frameworks()],
        key=lambda row: (row.direction, row.peer, row.speaks, row.operation, row.what),
    )


def pinned() -> str:
    """Return the version of the library for Node."""
    manifest = json.loads((DRIVERS / "a2a_js" / "package.json").read_text())
    return next(iter(manifest["dependencies"].values()))


def of_clients() -> Iterator[Row]:
    for peer, scenario in product(test_interop.PEERS, test_interop.SCENARIOS):
        if peer.can(scenario):
            name = peer.library.replace("==", "-")
            test = f"test_a_public_client_library_works_unmodified[{peer.id}-{scenario}]"
            spoken = peer.speaks.replace("-", " ")
            what = operation_of(scenario)
            # What a package.json pins has no version in its name.
            shown = name if name[-1].isdigit() else f"{name}-{pinned()}"
            direction = GATE if peer.is_carried else OUR_SERVER
            yield Row(shown, spoken, direction, what, scenario, "passed", test=test)


def of_sides() -> Iterator[Row]:
    for side, script in product(SIDES, SCRIPTS):
        name = "our_client_with_a_framework"
        if side in LIBRARIES:
            name = "a_script_passes_against_every_peer"
        owes = CLIENT_OWES.get((side.host, script), "")
        yield side_row(side, script, OUR_CLIENT, name, owes, gap_of(side, script))


def of_gateway() -> Iterator[Row]:
    for side, script in product(agents.BEHIND, agents.CARRIED):
        owes = GATEWAY_OWES.get((side.host, script), "")
        name = "our_gateway_with_a_framework"
        row = side_row(side, script, OUR_GATEWAY, name, owes, gap_of(side, script))
        yield replace(row, test="") if row.outcome == "missing" else row


def side_row(side: Side, script: str, direction: str, name: str, owes: str, gap: Any) -> Row:
    spoken = f"{side.version} {side.binding.lower().replace('http+json', 'rest')}"
    outcome = "missing" if gap else "owed" if owes else "passed"
    is_run = gap is None or gap.raises
    return Row(
        side.host,
        spoken,
        direction,
        operation_of(script),
        script,
        outcome,
        gap.reason if gap else owes,
        f"test_{name}[{side.id}-{script}]" if is_run else "",
    )


def of_frameworks() -> Iterator[Row]:
    for one, place in product(clients.FRAMEWORKS, clients.PLACES):
        direction = OUR_SERVER if place == "server" else GATE
        for what in one.operations:
            test = f"test_a_framework_as_a_client[{one.name}-{place}-{what}]"
            owes = one.owed.get(what, "")
            outcome = "owed" if owes else "passed"
            what_for = operation_of(what)
            yield Row(one.name, one.speaks, direction, what_for, what, outcome, owes, test)
        for what, reason in one.gaps.items():
            yield Row(one.name, one.speaks, direction, operation_of(what), what, "missing", reason)
