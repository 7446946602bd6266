"""The budget of one session for calls of other agents: the number of calls, the number of agents,
and a pause between two calls. The limits are corvid's environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from dragoman.model.clock import Clock, SystemClock

BudgetRejectionReason = Literal["INVOCATION_LIMIT", "UNIQUE_AGENT_LIMIT", "COOLDOWN"]


@dataclass(frozen=True)
class InvocationGuardConfig:
    """The limits."""

    max_invocations_per_session: int = 10
    max_unique_agents_per_session: int = 3
    cooldown_ms: int = 5000
    # Tasks of one source; 0: no limit. Unknown callers share one source, so the default is none.
    inbound_rate_limit_per_min: int = 0


def load_invocation_guard_config(
    environ: Mapping[str, str] | None = None,
) -> InvocationGuardConfig:
    """Return the limits of the environment; a value that is no number in range is ignored."""
    env = os.environ if environ is None else environ
    usual = InvocationGuardConfig()
    return InvocationGuardConfig(
        _number(env, "MAX_REMOTE_INVOCATIONS_PER_SESSION", usual.max_invocations_per_session, 1),
        _number(env, "MAX_UNIQUE_AGENTS_PER_SESSION", usual.max_unique_agents_per_session, 1),
        _number(env, "A2A_INVOCATION_COOLDOWN_MS", usual.cooldown_ms, 0),
        _number(env, "A2A_INBOUND_RATE_LIMIT_PER_MIN", usual.inbound_rate_limit_per_min, 1),
    )


def _number(environ: Mapping[str, str], name: str, usual: int, least: int) -> int:
    text = environ.get(name, "").strip()
    found = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
    return found if found >= least else usual


@dataclass(frozen=True)
class BudgetCheckResult:
    """Whether a call is allowed; if not, why."""

    allowed: bool
    reason: BudgetRejectionReason | None = None
    detail: str | None = None


class SessionInvocationBudget:
    """The budget of one session: `check` before a call, `record` when it is made."""

    def __init__(
        self,
        config: InvocationGuardConfig | None = None,
        *,
        clock: Clock | None = None,
        **limits: Any,
    ) -> None:
        """`limits` replace single limits of the environment, by their names."""
        self._config = replace(config or load_invocation_guard_config(), **limits)
        self._clock = clock or SystemClock()
        self._count = 0
        self._agents: set[str] = set()
        self._last_at: int | None = None

    def check(self, target_agent_url: str) -> BudgetCheckResult:
        """Say whether an agent may be called now."""
        config = self._config
        if self._count >= config.max_invocations_per_session:
            most = config.max_invocations_per_session
            return BudgetCheckResult(
                False, "INVOCATION_LIMIT", f"The session has made its {most} calls."
            )
        most = config.max_unique_agents_per_session
        if target_agent_url not in self._agents and len(self._agents) >= most:
            return BudgetCheckResult(
                False, "UNIQUE_AGENT_LIMIT", f"The session has called its {most} agents."
            )
        if self._last_at is not None:
            left = self._last_at + config.cooldown_ms - self._clock.now()
            if left > 0:
                return BudgetCheckResult(False, "COOLDOWN", f"Try again in {left} ms.")
        return BudgetCheckResult(True)

    def record(self, target_agent_url: str) -> None:
        """Count a call."""
        self._count += 1
        self._agents.add(target_agent_url)
        self._last_at = self._clock.now()

    @property
    def invocation_count(self) -> int:
        """How many calls were made."""
        return self._count

    @property
    def unique_agent_count(self) -> int:
        """How many agents were called."""
        return len(self._agents)
