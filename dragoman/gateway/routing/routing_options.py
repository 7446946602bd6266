"""What a caller may specify about a task: agent, skill, trust, price, policy, deadline, race.

The options are in the metadata of the request, which every binding and version has; paths and house
dialects that express the same are translated into it.
"""

from typing import Any

import msgspec

from dragoman.errors import InvalidParams
from dragoman.gateway.routing import hop_limit
from dragoman.gateway.routing.candidates import POLICIES
from dragoman.model.message import Metadata
from dragoman.model.money import micro_credits
from dragoman.model.operations import SendMessage

_LONGEST = 86_400 * 30


class RoutingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a task."""

    agent: str = ""
    skill: str = ""
    min_trust: int = 0
    # Micro-credits; None: any price.
    max_price: int | None = None
    policy: str = ""
    # Seconds; None: no limit.
    timeout: float | None = None
    # How many agents do it at the same time, and how many of them have to agree.
    race: int = 1
    quorum: int = 1


# Options beside agent and skill, which few messages have.
_OTHERS = frozenset(
    {"maxBudget", "maxPrice", "timeoutSeconds", "timeoutMs", "quorum", "race", "minTrust", "policy"}
)


def read(operation: SendMessage) -> RoutingOptions:
    """Return the options in a message's metadata, else in its request's."""
    metadata: Metadata = {**operation.metadata, **operation.message.metadata}
    agent = _text(metadata, "agentId") or _text(metadata, "assignedAgentId")
    skill = _skill(operation.message.metadata) or _skill(operation.metadata)
    if _OTHERS.isdisjoint(metadata):
        return RoutingOptions(agent=agent, skill=skill)
    limit = "maxBudget" if "maxBudget" in metadata else "maxPrice"
    budget = metadata.get(limit)
    seconds = _number(metadata, "timeoutSeconds", 1, _LONGEST)
    if seconds is None and (milliseconds := _number(metadata, "timeoutMs", 1, _LONGEST * 1000)):
        seconds = milliseconds / 1000
    quorum = int(_number(metadata, "quorum", 1, 16) or 1)
    race = int(_number(metadata, "race", 1, 16) or 1)
    return RoutingOptions(
        agent=agent,
        skill=skill,
        min_trust=int(_number(metadata, "minTrust", 0, 100) or 0),
        max_price=None if budget is None else _money(limit, budget),
        policy=_policy(metadata),
        timeout=seconds,
        race=max(race, quorum),
        quorum=quorum,
    )


def deadline(options: RoutingOptions, arrival: hop_limit.Arrival, now: int) -> int | None:
    """Return when a task has to have ended, in milliseconds: the earliest of all limits."""
    ends = [] if options.timeout is None else [now + int(options.timeout * 1000)]
    if arrival.deadline is not None:
        ends.append(arrival.deadline)
    return min(ends, default=None)


def _text(metadata: Metadata, name: str) -> str:
    value: Any = metadata.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > 256:
        raise InvalidParams("must be a text of at most 256 characters", field=f"metadata.{name}")
    return value


def _skill(metadata: Metadata) -> str:
    """Return the skill that is named, in the order in which agents read it: what is declared of a
    skill must not be taken for another."""
    return _text(metadata, "skillId") or _text(metadata, "skill")


def _policy(metadata: Metadata) -> str:
    policy = _text(metadata, "policy")
    if policy and policy not in POLICIES:
        raise InvalidParams(f"is none of: {', '.join(POLICIES)}", field="metadata.policy")
    return policy


def _number(metadata: Metadata, name: str, least: float, most: float) -> float | None:
    value: Any = metadata.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidParams(
            f"must be a number from {least:g} to {most:g}", field=f"metadata.{name}"
        )
    return value


def _money(name: str, value: Any) -> int:
    """Return an amount that is given as a text or as a JSON number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value).removesuffix(".0")
    try:
        return micro_credits(value if isinstance(value, str) else "")
    except ValueError as error:
        raise InvalidParams(str(error), field=f"metadata.{name}") from None
