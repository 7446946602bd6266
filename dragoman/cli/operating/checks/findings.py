"""What `dragoman doctor` looks at, and what a check finds: how bad it is, and what to do."""

from typing import TYPE_CHECKING, Literal, NamedTuple

from dragoman.cli.invocation import Invocation

if TYPE_CHECKING:
    # Heavy: loaded when a check needs them.
    from pathlib import Path

    from dragoman.config import Settings
    from dragoman.stores.interface.inspection import HealthInspection
    from dragoman.stores.postgres.operating.health import DatabaseFacts
    from dragoman.stores.tools import Wait

Level = Literal["ok", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "warning", "problem")


class Finding(NamedTuple):
    """What a check found."""

    check: str
    level: Level
    message: str
    hint: str | None = None


class CheckResult(NamedTuple):
    """A finding without the name of its check."""

    level: Level
    message: str
    hint: str | None = None


def ok(message: str) -> CheckResult:
    """Nothing is to be done."""
    return CheckResult("ok", message)


def warning(message: str, hint: str) -> CheckResult:
    """A warning: the operator should know."""
    return CheckResult("warning", message, hint)


def problem(message: str, hint: str) -> CheckResult:
    """Something does not work, or is about to fail."""
    return CheckResult("problem", message, hint)


def count(number: int, one: str, many: str = "") -> str:
    """Return a number of things in words."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


class CheckedInstallation:
    """What is looked at."""

    def __init__(self, run: Invocation, store: str | None) -> None:
        from dragoman.config import load_settings
        from dragoman.errors import ConfigError

        self.run = run
        # With what the configuration files say.
        environment = self.environment = run.settings.environment
        self.is_named = store is not None
        self.refusal = ""
        try:
            self.settings: Settings = load_settings(environment, store=store)
        except ConfigError as error:
            # The rest is looked at all the same.
            self.refusal = str(error)
            self.settings = load_settings({}, store=store or environment.get("DRAGOMAN_STORE"))
        self.open_inspection: HealthInspection | None = None
        # Of a store that is a database.
        self.database: DatabaseFacts | None = None
        # Runs what the look has.
        self.wait: Wait

    @property
    def is_postgres(self) -> bool:
        """Whether the store is a database."""
        return self.settings.is_postgres

    @property
    def path(self) -> "Path":
        """The file of the store; only for checks of a file."""
        return self.settings.store_path()

    @property
    def inspection(self) -> "HealthInspection":
        """The look into the store; only for checks that need one."""
        assert self.open_inspection is not None
        return self.open_inspection
