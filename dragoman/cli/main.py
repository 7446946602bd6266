"""The `dragoman` command: the table of commands, and the border nothing unexplained gets past.

Commands are loaded when they are called, so that help is instant.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from dragoman.cli.failures import USAGE, Failure, explain, usage
from dragoman.cli.grammar import Group, Place
from dragoman.cli.invocation import Invocation
from dragoman.cli.output import Unwritable
from dragoman.errors import ConfigError

_ASK = "Talk to agents"
_RUN = "Run agents"
_TEST = "Test with agents"
_KEEP = "Look after them"
_SELF = "About this command"

COMMANDS = {
    "send": Place("dragoman.cli.send:send", "Send a message to an agent.", _ASK),
    "task": Place("dragoman.cli.task:task", "Read, cancel, list and follow tasks.", _ASK),
    "card": Place("dragoman.cli.card:card", "Show, sign and verify agent cards.", _ASK),
    "chat": Place("dragoman.cli.chat:chat", "Talk with an agent on the terminal.", _ASK),
    "inbox": Place("dragoman.cli.inbox:inbox", "Answer what waits for a person.", _ASK),
    "auth": Place("dragoman.cli.auth:auth", "Log in to an agent.", _ASK),
    "serve": Place("dragoman.cli.serve:serve", "Serve agents of your own.", _RUN),
    "up": Place("dragoman.cli.up:up", "Start a gateway and say what to try.", _RUN),
    "gateway": Place("dragoman.cli.up:gateway", "Serve a gateway to agents.", _RUN),
    "mcp": Place("dragoman.cli.mcp:mcp", "Offer agents or a gateway as an MCP server.", _RUN),
    "init": Place("dragoman.cli.init:init", "Begin a project that runs and tests itself.", _RUN),
    "mock": Place("dragoman.cli.mock:mock", "Play a scripted agent.", _TEST),
    "demo-server": Place(
        "dragoman.cli.demo_server:demo_server", "Play the agent that shows everything.", _TEST
    ),
    "record": Place("dragoman.cli.record:record", "Record a dialogue with an agent.", _TEST),
    "replay": Place("dragoman.cli.replay:replay", "Play a recorded agent.", _TEST),
    "conformance": Place(
        "dragoman.cli.conformance:conformance", "Check that an agent keeps to the protocol.", _TEST
    ),
    "bench": Place("dragoman.cli.bench:bench", "Measure an agent under load.", _TEST),
    "agents": Place("dragoman.cli.agents:agents", "Register agents with a gateway.", _KEEP),
    "tasks": Place("dragoman.cli.tasks:tasks", "Look into our own store.", _KEEP),
    "doctor": Place("dragoman.cli.doctor:doctor", "Check installation and store.", _KEEP),
    "push": Place("dragoman.cli.push:push", "Look at webhooks; try failed ones again.", _KEEP),
    "keys": Place("dragoman.cli.keys:keys", "Make, list and end API keys.", _KEEP),
    "vault": Place("dragoman.cli.vault:vault", "Look after the keys of stored secrets.", _KEEP),
    "backup": Place("dragoman.cli.backup:backup", "Copy the store while it is in use.", _KEEP),
    "audit": Place("dragoman.cli.audit:audit", "Read and verify the audit log.", _KEEP),
    "trust": Place("dragoman.cli.trust:trust", "See and verify how agents are trusted.", _KEEP),
    "credits": Place(
        "dragoman.cli.credits:credits_", "See, buy and settle credits at a gateway.", _KEEP
    ),
    "workflows": Place(
        "dragoman.cli.workflows:workflows", "Define and run workflows at a gateway.", _KEEP
    ),
    "ledger": Place("dragoman.cli.ledger:ledger", "Look into and verify the ledger.", _KEEP),
    "proof": Place("dragoman.cli.proof:proof", "Show that nothing is lost.", _KEEP),
    "config": Place("dragoman.cli.config:config", "Show settings and their sources.", _SELF),
    "completion": Place("dragoman.cli.completion:completion", "Print a completion script.", _SELF),
    "help": Place("dragoman.cli.help:help_command", "Show the help of a command.", _SELF),
}


cli = Group(
    "dragoman",
    places=COMMANDS,
    help="Serve, call and carry A2A agents; every task is kept.",
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command. Whatever goes wrong is told in the format that was asked for."""
    words = list(sys.argv[1:] if argv is None else argv)
    if getattr(sys, "stdout", None) is None:
        # Closed before we began: there is nobody to write for.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - open for as long as the process
    run = Invocation(words)
    try:
        # Not click's own `main`: it has other ideas of exits and closed pipes.
        with cli.make_context("dragoman", words, obj=run) as ctx:
            cli.invoke(ctx)
        sys.stdout.flush()
        code = 0
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    except BrokenPipeError:
        code = _leave_quietly()
    except Unwritable as error:
        code = _leave_loudly(error)
    except (Exception, KeyboardInterrupt) as error:
        code = _tell(run, error)
    sys.exit(code)


def _tell(run: Invocation, error: BaseException) -> int:
    """Say what went wrong; return the exit code."""
    try:
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            failure = _no_command(run, error)
        else:
            failure = explain(error)
            is_told = isinstance(error, Failure | click.ClickException | ConfigError)
            if run.settings.debug and not is_told:
                _trace(run, error)
            if failure.hint is None:
                failure.hint = _hint(run, error, failure)
            run.out.fail(failure)
        # What others wrote, such as help, may still be on its way.
        sys.stdout.flush()
        return failure.exit
    except BrokenPipeError:
        return _leave_quietly()
    except (Unwritable, OSError) as error:
        return _leave_loudly(error)


def _hint(run: Invocation, error: BaseException, failure: Failure) -> str | None:
    """Return the next command after what no command has one for."""
    from dragoman.cli.hints import again, lines_of_json

    if failure.code == USAGE:
        if "jsonl" in _formats(run):
            return lines_of_json(run)
        return f"{_path(run)} --help"
    is_ours = isinstance(error, Exception) and not isinstance(error, Failure | OSError)
    return again(run, "--debug") if is_ours and not run.settings.debug else None


def _formats(run: Invocation) -> list[str]:
    words = [word.removeprefix("--output=").removeprefix("-o") for word in run.argv]
    return [*words, run.environment.get("A2ACLI_OUTPUT", "")]


def _path(run: Invocation) -> str:
    """Return the words of the command that was called."""
    place: click.Command = cli
    found = ["dragoman"]
    for word in run.argv:
        if isinstance(place, Group) and word in place.places:
            found.append(word)
            place = place.commands.get(word, place)
    return " ".join(found)


def _no_command(run: Invocation, error: click.UsageError) -> Failure:
    assert error.ctx is not None
    failure = usage("a command is missing", f"{error.ctx.command_path} --help")
    click.echo(error.ctx.get_help(), err=True)
    if run.settings.is_json:
        run.out.fail(failure)
    return failure


def _trace(run: Invocation, error: BaseException) -> None:
    import traceback

    for line in "".join(traceback.format_exception(error)).splitlines():
        run.out.debug(line)


def _leave_quietly() -> int:
    """Nobody reads any more. The interpreter would complain when it flushes at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    return 0


def _leave_loudly(error: Exception) -> int:
    """What was to be read is not written: say so where there is still a place for it."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    with suppress(OSError, ValueError):
        sys.stderr.write(f"Error: stdout cannot be written: {reason}\n")
        sys.stderr.flush()
    _leave_quietly()
    return 1
