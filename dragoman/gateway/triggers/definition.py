"""What an owner says of a trigger, and what is kept of it."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from dragoman.errors import InvalidParams
from dragoman.gateway.triggers import schedule, template
from dragoman.gateway.triggers.schedule import Missed

LARGEST_DATA = 64 * 1024
Name = Annotated[str, Meta(min_length=1, max_length=100)]
Text = Annotated[str, Meta(max_length=16_000)]


class TriggerSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """When tasks begin by the clock."""

    # Five fields: minute, hour, day of the month, month, day of the week.
    cron: str
    zone: str = "UTC"
    # After a time in which no gateway was there: run none of the missed times, the last, or all.
    missed: Missed = "once"


class NewTrigger(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A trigger to make: which agent is told what, and when."""

    name: Name
    # Its id or name.
    agent_id: Name
    skill_id: Annotated[str, Meta(max_length=200)] = ""
    # What the agent is told. A trigger with neither tells what was posted.
    text: Text = ""
    data: Any = UNSET
    # One of the two.
    schedule: TriggerSchedule | None = None
    webhook: bool = False
    enabled: bool = True


class TriggerChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Changes of a trigger; what is left out stays."""

    name: Name | UnsetType = UNSET
    text: Text | UnsetType = UNSET
    data: Any = UNSET
    schedule: TriggerSchedule | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a trigger the last time."""

    # The due time, or when something was posted, in milliseconds.
    at: int
    task_id: str = ""
    # Why no task began.
    problem: str = ""


# Runs that a trigger remembers.
MOST_RUNS = 10


class TriggerDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trigger as it is stored."""

    name: str
    agent_id: str
    skill_id: str = ""
    text: str = ""
    data: Any = UNSET
    schedule: TriggerSchedule | None = None
    webhook: bool = False
    enabled: bool = True
    # How often the secret of its webhook was replaced.
    generation: int = 0
    runs: int = 0
    last: LastRun | None = None
    # The runs before the last, the latest first.
    earlier: list[LastRun] = []

    def next_due(self, now: int) -> int | None:
        """Return when it is due next; None: it waits for no time."""
        if self.schedule is None or not self.enabled:
            return None
        return schedule.next_after(self.schedule.cron, self.schedule.zone, now)

    @property
    def recent(self) -> list[LastRun]:
        """What came of the last runs, the latest first."""
        return [] if self.last is None else [self.last, *self.earlier]

    def after(self, run: LastRun) -> "TriggerDefinition":
        """Return it after a run; one that led to a task that is known, since it was begun again,
        counts once."""
        if run.task_id and any(one.task_id == run.task_id for one in self.recent):
            return self
        return msgspec.structs.replace(
            self,
            last=run,
            earlier=self.recent[: MOST_RUNS - 1],
            runs=self.runs + bool(run.task_id),
        )


def defined(said: NewTrigger, agent_id: str) -> TriggerDefinition:
    """Return a trigger as it is stored; raises `InvalidParams`."""
    if (said.schedule is None) == (not said.webhook):
        raise InvalidParams("give one of the two: schedule, or webhook: true", field="schedule")
    return _checked(
        TriggerDefinition(
            name=said.name,
            agent_id=agent_id,
            skill_id=said.skill_id,
            text=said.text,
            data=said.data,
            schedule=said.schedule,
            webhook=said.webhook,
            enabled=said.enabled,
        )
    )


def changed(before: TriggerDefinition, said: TriggerChange) -> TriggerDefinition:
    """Return a trigger after a change; raises `InvalidParams`."""
    if said.schedule is not UNSET and before.schedule is None:
        raise InvalidParams("this one waits for posts, not for a time", field="schedule")
    given = {name: getattr(said, name) for name in said.__struct_fields__}
    given = {name: value for name, value in given.items() if value is not UNSET}
    return _checked(msgspec.structs.replace(before, **given))


def _checked(found: TriggerDefinition) -> TriggerDefinition:
    if found.schedule is not None:
        schedule.check(found.schedule.cron, found.schedule.zone)
        if not found.text and found.data is UNSET:
            raise InvalidParams("is missing: say what the agent is told", field="text")
    if found.webhook and template.uses_due([found.text, found.data]):
        raise InvalidParams("{due} is for schedules: a post has no due time", field="text")
    template.check(found.text)
    if found.data is not UNSET:
        template.check(found.data)
        if len(msgspec.json.encode(found.data)) > LARGEST_DATA:
            raise InvalidParams(f"is larger than {LARGEST_DATA} bytes", field="data")
    return found
