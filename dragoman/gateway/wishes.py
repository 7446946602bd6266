"""What callers tell a gateway about a task: who is to do it, how well, for how much, by when.

It stands in the metadata of the request, where every binding and version has room for it; paths and
house dialects that say the same in other ways are read into it.
"""

from typing import Any

import msgspec

from dragoman.errors import InvalidParams
from dragoman.gateway import hops
from dragoman.model.message import Metadata
from dragoman.model.money import micro_credits
from dragoman.model.operations import SendMessage

_POLICIES = ("trust", "cheapest", "fastest", "round-robin", "learning")
_LONGEST = 86_400 * 30


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants of a task."""

    agent: str = ""
    skill: str = ""
    min_trust: int = 0
    # Micro-credits; None: whatever it costs.
    max_price: int | None = None
    policy: str = ""
    # Seconds; None: as long as it takes.
    timeout: float | None = None
    # How many agents do it at once: the first answer counts, or the first on which so many agree.
    race: int = 1
    quorum: int = 1


def read(operation: SendMessage) -> Wishes:
    """Return what a message's metadata says, and its request's where that says nothing."""
    said: Metadata = {**operation.metadata, **operation.message.metadata}
    limit = "maxBudget" if "maxBudget" in said else "maxPrice"
    budget = said.get(limit)
    seconds = _number(said, "timeoutSeconds", 1, _LONGEST)
    if seconds is None and (milliseconds := _number(said, "timeoutMs", 1, _LONGEST * 1000)):
        seconds = milliseconds / 1000
    quorum = int(_number(said, "quorum", 1, 16) or 1)
    race = int(_number(said, "race", 1, 16) or 1)
    return Wishes(
        agent=_text(said, "agentId") or _text(said, "assignedAgentId"),
        skill=_text(said, "skillId") or _text(said, "skill"),
        min_trust=int(_number(said, "minTrust", 0, 100) or 0),
        max_price=None if budget is None else _money(limit, budget),
        policy=_policy(said),
        timeout=seconds,
        race=max(race, quorum),
        quorum=quorum,
    )


def deadline(wishes: Wishes, arrival: hops.Arrival, now: int) -> int | None:
    """Return when a task has to have ended, in milliseconds: the earliest that anyone said."""
    ends = [] if wishes.timeout is None else [now + int(wishes.timeout * 1000)]
    if arrival.deadline is not None:
        ends.append(arrival.deadline)
    return min(ends, default=None)


def _text(said: Metadata, name: str) -> str:
    value: Any = said.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > 256:
        raise InvalidParams("must be a text of at most 256 characters", field=f"metadata.{name}")
    return value


def _policy(said: Metadata) -> str:
    policy = _text(said, "policy")
    if policy and policy not in _POLICIES:
        raise InvalidParams(f"is none of: {', '.join(_POLICIES)}", field="metadata.policy")
    return policy


def _number(said: Metadata, name: str, least: float, most: float) -> float | None:
    value: Any = said.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidParams(
            f"must be a number from {least:g} to {most:g}", field=f"metadata.{name}"
        )
    return value


def _money(name: str, value: Any) -> int:
    """Return an amount: a text, or a number as JSON has it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = repr(value).removesuffix(".0")
    try:
        return micro_credits(value if isinstance(value, str) else "")
    except ValueError as error:
        raise InvalidParams(str(error), field=f"metadata.{name}") from None
