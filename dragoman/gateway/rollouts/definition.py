"""What an owner says of a rollout, what is kept of it, and what its rule decides. Pure."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Part = Annotated[float, Meta(ge=0, le=1)]
Share = Annotated[float, Meta(gt=0, le=1)]
Mode = Literal["shadow", "canary"]
State = Literal["running", "promoting", "promoted", "rolledBack"]
Decision = Literal["promote", "rollback"]
# What came of one task: both agree, or the first thing in which they do not.
Result = Literal["agreed", "structure", "text", "check", "failed"]

# Tasks that wait to be compared, and results that are shown.
MOST_OPEN = 64
MOST_RECENT = 20
LONGEST_REASON = 200


class RolloutRule(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When a version is promoted or rolled back by itself."""

    # Tasks of the new version by which it is judged.
    least: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    # The part of them that has to agree, and the part that may fail.
    agreement: Part = 0.95
    failures: Part = 0.01
    # Seconds after which it is rolled back if there were too few tasks; None: it waits.
    within_seconds: Annotated[int, Meta(ge=1, le=366 * 86_400)] | None = None


class NewRollout(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A rollout to begin. Agents are named by their ids or names."""

    agent_id: Name
    # The new version: a registered agent of the same owner.
    candidate_id: Name
    # shadow: the share goes to both, and the old one's answer counts. canary: to the new one.
    mode: Mode = "shadow"
    share: Share = 0.1
    # How far what the two say may be apart: 0 is the same, 1 has nothing in common.
    max_distance: Part = 0.2
    # An agent of the same owner that tells whether an answer is right.
    check_agent_id: Annotated[str, Meta(max_length=100)] = ""
    # What a copy of a task, and a check of it, may take.
    timeout_seconds: Annotated[int, Meta(ge=1, le=3600)] = 60
    # Without one it ends by command only.
    rule: RolloutRule | None = None


class RolloutChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What to change of a rollout that is running; what is left out stays."""

    # With another mode the figures begin anew: they mean something else. The time of the rule does
    # with any change.
    mode: Mode | UnsetType = UNSET
    share: Share | UnsetType = UNSET


class VersionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one of the two versions."""

    tasks: int = 0
    failed: int = 0
    # Milliseconds that those which were done took, in all.
    ms: int = 0

    def plus(self, ms: int, *, is_done: bool) -> "VersionFigures":
        """Return it with one more task."""
        return VersionFigures(
            tasks=self.tasks + 1,
            failed=self.failed + (not is_done),
            ms=self.ms + (ms if is_done else 0),
        )


class RolloutCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was counted: each task once."""

    old: VersionFigures = VersionFigures()
    new: VersionFigures = VersionFigures()
    # What was judged of the new version, and how.
    judged: int = 0
    agreed: int = 0
    structure: int = 0
    text: int = 0
    check: int = 0
    failed: int = 0
    # All distances, added up, and of how many tasks they are.
    distance: float = 0.0
    compared: int = 0
    # Tasks of the share that were not copied: there were too many at a time, or the copy could not
    # be the same (it had asked back, or is gone).
    dropped: int = 0
    skipped: int = 0

    def plus(self, result: Result, distance: float | None) -> "RolloutCounts":
        """Return them with one more task that was judged."""
        changes: dict[str, float] = {result: getattr(self, result) + 1, "judged": self.judged + 1}
        if distance is not None:
            changes |= {"distance": self.distance + distance, "compared": self.compared + 1}
        return replace(self, **changes)


class OpenSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that is yet to be judged."""

    # Its number in the store, and its id.
    task: int
    task_id: str
    # Set once the answer of the new version is there and the check is asked.
    is_answered: bool = False
    # The new version did the task itself: there is no copy.
    is_canary: bool = False
    distance: float | None = None


class Judged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that was judged: kept for the latest."""

    task_id: str
    result: Result
    distance: float | None = None
    # In words, where there is more to say.
    reason: str = ""


class RolloutDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rollout as it is stored."""

    candidate: str
    mode: Mode
    share: float
    max_distance: float
    check_agent: str = ""
    timeout: int
    rule: RolloutRule | None = None
    state: State = "running"
    # When it was changed last; 0: never.
    since: int = 0
    ended_at: int = 0
    # Why it ended.
    reason: str = ""
    # The last event of trust that was looked at: each ended task is one of these.
    position: int = 0
    open: list[OpenSample] = []
    recent: list[Judged] = []
    figures: RolloutCounts = RolloutCounts()

    def changed(self, said: RolloutChange, now: int) -> "RolloutDefinition":
        """Return it as its owner changed it."""
        share = self.share if said.share is UNSET else said.share
        found = replace(self, share=share, since=now)
        if said.mode is UNSET or said.mode == found.mode:
            return found
        return replace(found, mode=said.mode, open=[], recent=[], figures=RolloutCounts())

    def with_sample(self, sample: OpenSample) -> "RolloutDefinition":
        """Return it with a task to judge, or with one more that was dropped."""
        if len(self.open) < MOST_OPEN:
            return replace(self, open=[*self.open, sample])
        return replace(self, figures=replace(self.figures, dropped=self.figures.dropped + 1))

    def replaced(self, sample: OpenSample) -> "RolloutDefinition":
        """Return it after one more step with a sample."""
        return replace(self, open=[sample if one.task == sample.task else one for one in self.open])

    def without(
        self, sample: OpenSample, *, skipped: int = 0, dropped: int = 0
    ) -> "RolloutDefinition":
        """Return it without a sample that cannot be judged."""
        counted = replace(
            self.figures,
            skipped=self.figures.skipped + skipped,
            dropped=self.figures.dropped + dropped,
        )
        return replace(self, open=self._others(sample), figures=counted)

    def judged(self, sample: OpenSample, result: Result, reason: str = "") -> "RolloutDefinition":
        """Return it after a sample was judged."""
        judged = Judged(
            task_id=sample.task_id,
            result=result,
            distance=sample.distance,
            reason=reason[:LONGEST_REASON],
        )
        return replace(
            self,
            open=self._others(sample),
            recent=[judged, *self.recent][:MOST_RECENT],
            figures=self.figures.plus(result, sample.distance),
        )

    def seen_old(self, ms: int, *, is_done: bool) -> "RolloutDefinition":
        """Return it after the old version did a task."""
        old = self.figures.old.plus(ms, is_done=is_done)
        return replace(self, figures=replace(self.figures, old=old))

    def seen_new(self, ms: int, *, is_done: bool) -> "RolloutDefinition":
        """Return it after the new version did a task, or a copy of one."""
        new = self.figures.new.plus(ms, is_done=is_done)
        return replace(self, figures=replace(self.figures, new=new))

    def _others(self, sample: OpenSample) -> list[OpenSample]:
        return [one for one in self.open if one.task != sample.task]


def decide(found: RolloutDefinition, age_seconds: float) -> tuple[Decision, str] | None:
    """Return what the rule says, and why; None: it says nothing yet. A version that cannot make it
    any more is rolled back at once."""
    rule, figures = found.rule, found.figures
    if rule is None:
        return None
    most_failed = rule.failures * max(rule.least, figures.judged)
    most_other = (1 - rule.agreement) * max(rule.least, figures.judged)
    differ = figures.judged - figures.agreed
    if figures.failed > most_failed:
        return "rollback", f"{figures.failed} of {figures.judged} tasks failed"
    # A hair more than floating point is off.
    if differ > most_other + 1e-9:
        return "rollback", f"{differ} of {figures.judged} answers do not agree"
    if figures.judged >= rule.least:
        return "promote", f"{figures.agreed} of {figures.judged} answers agree"
    if rule.within_seconds is not None and age_seconds > rule.within_seconds:
        return "rollback", f"only {figures.judged} of {rule.least} tasks came in time"
    return None
