"""The settings of a gateway."""

from typing import Annotated, Literal

from dragoman.config.formats import read_share
from dragoman.config.group import SettingsGroup, about
from dragoman.model.money import micro_credits


class GatewaySettings(SettingsGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a gateway routes, forwards, scores and settles."""

    routing: Annotated[
        Literal["trust", "cheapest", "fastest", "round-robin", "learning"],
        about("How a gateway chooses among agents that can do a task."),
    ] = "trust"
    max_agents_per_owner: Annotated[
        int, about("Agents one owner may register with a gateway.", ge=1)
    ] = 1_000
    agent_concurrency: Annotated[
        int, about("Tasks a gateway has one registered agent work on at once; others wait.", ge=1)
    ] = 1_000
    agent_queue: Annotated[
        int, about("Tasks that may wait for one registered agent; further ones fail.", ge=0)
    ] = 10_000
    forward_attempts: Annotated[
        int,
        about(
            "How often a gateway sends a message to agents that do not answer, the first after one "
            "second and each later one after twice as long.",
            ge=1,
            le=10,
        ),
    ] = 3
    forward_timeout: Annotated[
        float,
        about(
            "Seconds an agent has to begin its answer before the gateway tries again; those that "
            "would repeat the work of a message have `forward_patience`.",
            gt=0,
        ),
    ] = 30.0
    forward_patience: Annotated[
        float,
        about(
            "Seconds an agent that has a task may be out of reach, or show no sign of life, before "
            "the gateway gives the task up, or to another agent.",
            gt=0,
        ),
    ] = 300.0
    forward_quiet: Annotated[
        float,
        about(
            "Seconds an agent that has a task may be silent before the gateway asks it how the "
            "task stands; at most a third of `forward_patience`.",
            gt=0,
        ),
    ] = 30.0
    heartbeat_interval: Annotated[
        float,
        about(
            "Seconds between two signs of life of a registered agent: after one without any it is "
            "degraded, after three offline.",
            gt=0,
        ),
    ] = 60.0
    trust_policy: Annotated[
        Literal["nexus", "corvid"], about("How a gateway makes scores of what it observed.")
    ] = "nexus"
    trust_cap: Annotated[
        int, about("Tasks of one requester and day that count for one agent's score.", ge=1)
    ] = 20
    platform_fee: Annotated[
        str, about("What a gateway keeps of a price, as a share of it: `0.05`.", check=read_share)
    ] = "0.05"
    initial_credits: Annotated[
        str, about("Credits that each account has to begin with at a gateway.", check=micro_credits)
    ] = "1000"
    escrow: Annotated[
        float,
        about(
            "Seconds that the price of a completed task stays reserved at a gateway, for its "
            "requester to accept or dispute it; then it is paid. 0: it is paid at once.",
            ge=0,
            le=31_536_000,
        ),
    ] = 0.0
    payment_secret: Annotated[
        str,
        about(
            "What the test provider of payments signs its posts with. Empty: credits cannot be "
            "bought."
        ),
    ] = ""
