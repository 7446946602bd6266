"""The public client libraries, unmodified, against the conformance agent, and over gRPC through a
gateway before it too.

A test is one scenario of one library; what a scenario demands is written in the drivers.
"""

import pytest

from tests.peers.libraries import PEERS, Peer, Report

SCENARIOS = [
    "card",
    "send-completes",
    "send-returns-an-artifact",
    "send-returns-files-and-data",
    "send-returns-a-message",
    "send-is-rejected",
    "send-does-not-wait",
    "stream-in-order",
    "stream-in-chunks",
    "stream-a-message",
    "get-with-history",
    "list-in-pages",
    "cancel-a-running-task",
    "subscribe-after-a-lost-stream",
    "two-subscribers-see-the-same",
    "multi-turn",
    "multi-turn-in-streams",
    "unknown-task",
    "finished-task-stays-finished",
    "push-is-not-supported",
    "push-configurations",
    "push-arrives",
    "extended-card-is-off",
]

CASES = [
    pytest.param(peer, scenario, id=f"{peer.id}-{scenario}")
    for peer in PEERS
    for scenario in SCENARIOS
    if peer.can(scenario)
]


@pytest.mark.peer
@pytest.mark.parametrize(("peer", "scenario"), CASES)
def test_a_public_client_library_works_unmodified(
    peer: Peer, scenario: str, reports: dict[Peer, Report]
) -> None:
    found = reports[peer]
    name = f"{peer.library}, speaking {peer.speaks}{' to a gateway' if peer.is_carried else ''}"
    if scenario not in found.details:
        pytest.fail(f"{name}: nothing was said of {scenario}; {found.ending}", pytrace=False)
    if found.details[scenario]:
        pytest.fail(f"{name}: {scenario}\n{found.details[scenario]}", pytrace=False)
