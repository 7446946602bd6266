"""`--fail`: the exit code says how the task ended, and not only whether the command did its job."""

import click

from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option

FAIL = option(
    "--fail", switch=True, help="Exit with 1 if the task failed, was rejected or canceled."
)


def check_outcome(run: Invocation, *, fail: bool) -> None:
    """Exit with 1 for a task that came to a bad end, where that was asked for."""
    from dragoman.model.task import TaskState

    bad = (TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED)
    if fail and run.status is not None and run.status.state in bad:
        raise click.exceptions.Exit(1)
