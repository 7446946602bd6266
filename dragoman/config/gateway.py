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
            "How often a gateway sends a message to an agent that does not answer. It waits one "
            "second before the second time, and twice as long before each later one.",
            ge=1,
            le=10,
        ),
    ] = 3
    forward_timeout: Annotated[
        float,
        about(
            "Seconds an agent has to begin its answer before the gateway tries again. "
            "An agent that could do the work twice has `forward_patience` instead.",
            gt=0,
        ),
    ] = 30.0
    forward_patience: Annotated[
        float,
        about(
            "Seconds an agent with a task may be unreachable or silent before the "
            "gateway fails the task or gives it to another agent.",
            gt=0,
        ),
    ] = 300.0
    forward_quiet: Annotated[
        float,
        about(
            "Seconds an agent with a task may be silent before "
            "the gateway asks it about the task; at most a third of `forward_patience`.",
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
        Literal["nexus", "corvid"], about("The formula for a gateway's scores of trust.")
    ] = "nexus"
    trust_cap: Annotated[
        int, about("How many tasks of one requester count for an agent's score each day.", ge=1)
    ] = 20
    platform_fee: Annotated[
        str, about("The share of a price that the gateway keeps, 0 to 1.", check=read_share)
    ] = "0.05"
    initial_credits: Annotated[
        str, about("Credits of a new account at a gateway.", check=micro_credits)
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
            "The secret with which the test payment provider signs its posts. Empty: credits "
            "cannot be bought."
        ),
    ] = ""
