"""The `dragoman` command: the table of commands, and the border nothing unexplained gets past.

Commands are loaded when they are called, so that help is instant.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from dragoman.cli.failures import USAGE, Failure, explain, usage
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.output import Unwritable, drop_stdout
from dragoman.errors import ConfigError

_ASK = "Talk to agents"
_RUN = "Run agents"
_TEST = "Test with agents"
_KEEP = "Operate"
_SELF = "About this command"

COMMANDS = {
    "send": CommandPlace("calling.send:send", "Send a message to an agent.", _ASK),
    "task": CommandPlace(
        "calling.task:task", "Read, cancel, list, follow tasks of an agent.", _ASK
    ),
    "card": CommandPlace("calling.card:card", "Show, sign and verify agent cards.", _ASK),
    "gen": CommandPlace("calling.gen:gen", "Write typed calls of an agent.", _ASK),
    "chat": CommandPlace("calling.chat:chat", "Talk with an agent on the terminal.", _ASK),
    "inbox": CommandPlace("calling.inbox:inbox", "Answer questions that wait for a person.", _ASK),
    "auth": CommandPlace("calling.auth:auth", "Log in to an agent.", _ASK),
    "serve": CommandPlace("serving.serve:serve", "Serve agents of your own.", _RUN),
    "up": CommandPlace("serving.up:up", "Start a gateway and print what to try.", _RUN),
    "gateway": CommandPlace("serving.up:gateway", "Serve a gateway to agents.", _RUN),
    "join": CommandPlace("serving.join:join", "Serve an agent through a gateway.", _RUN),
    "mcp": CommandPlace("serving.mcp:mcp", "Offer agents or a gateway as an MCP server.", _RUN),
    "init": CommandPlace("serving.init:init", "Create a project with code and a test.", _RUN),
    "mock": CommandPlace("serving.mock:mock", "Serve a scripted agent.", _TEST),
    "demo-server": CommandPlace(
        "serving.demo_server:demo_server",
        "Serve a demo agent that shows everything.",
        _TEST,
    ),
    "record": CommandPlace("serving.record:record", "Record a dialogue with an agent.", _TEST),
    "replay": CommandPlace("serving.replay:replay", "Serve a recorded agent.", _TEST),
    "conformance": CommandPlace(
        "checking.conformance:conformance",
        "Check that an agent follows the protocol.",
        _TEST,
    ),
    "bench": CommandPlace("checking.bench:bench", "Measure an agent under load.", _TEST),
    "agents": CommandPlace("gateway.agents:agents", "Register agents with a gateway.", _KEEP),
    "tasks": CommandPlace("operating.tasks:tasks", "Show tasks in the local store.", _KEEP),
    "doctor": CommandPlace("operating.doctor:doctor", "Check installation and store.", _KEEP),
    "push": CommandPlace("operating.push:push", "Show and retry push notifications.", _KEEP),
    "keys": CommandPlace("operating.keys:keys", "Create, list and revoke API keys.", _KEEP),
    "vault": CommandPlace("operating.vault:vault", "Manage the keys of stored secrets.", _KEEP),
    "backup": CommandPlace("operating.backup:backup", "Copy the store while it is in use.", _KEEP),
    "store": CommandPlace("operating.store:store", "Check, migrate and copy the store.", _KEEP),
    "audit": CommandPlace("operating.audit:audit", "Read and verify the audit log.", _KEEP),
    "rollouts": CommandPlace(
        "gateway.rollouts:rollouts", "Try new versions of agents at a gateway.", _KEEP
    ),
    "triggers": CommandPlace(
        "gateway.triggers:triggers", "Start tasks on a schedule or by a webhook.", _KEEP
    ),
    "trust": CommandPlace("operating.trust:trust", "Show and verify the trust in agents.", _KEEP),
    "credits": CommandPlace(
        "gateway.credits:credits_", "Show, buy and settle credits at a gateway.", _KEEP
    ),
    "workflows": CommandPlace(
        "gateway.workflows:workflows", "Define and run workflows at a gateway.", _KEEP
    ),
    "ledger": CommandPlace("operating.ledger:ledger", "Show and verify the ledger.", _KEEP),
    "config": CommandPlace("operating.config:config", "Show settings and their sources.", _SELF),
    "completion": CommandPlace(
        "operating.completion:completion", "Print a completion script.", _SELF
    ),
    "help": CommandPlace("main:help_command", "Show the help of a command.", _SELF),
}


cli = Group(
    "dragoman",
    places=COMMANDS,
    help="Serve and call A2A agents, and route tasks between them. Every task is stored.",
)


@command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@option("--all", "everything", switch=True, help="Explain the options of all commands too.")
@click.pass_context
def help_command(
    ctx: click.Context, run: Invocation, words: tuple[str, ...], everything: bool
) -> None:
    """Show the help of a command."""
    place = ctx.find_root()
    for word in words:
        if not isinstance(place.command, click.Group):
            raise click.UsageError(f"{place.command_path} has no commands", place)
        _, found, _ = place.command.resolve_command(place, [word])
        assert found is not None
        place = found.context_class(found, info_name=word, parent=place, **found.context_settings)
    run.out.write(place.get_help() + "\n")


def main(argv: Sequence[str] | None = None, *, group: Group = cli, name: str = "dragoman") -> None:
    """Run a command of a group. Every failure is reported in the requested format."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_missing_streams()
    run = Invocation(words)
    try:
        # Not click's own `main`: it has other ideas of exits and closed pipes.
        with group.make_context(name, words, obj=run) as ctx:
            group.invoke(ctx)
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


def _open_missing_streams() -> None:
    """Give a process that was started without a standard stream one that leads nowhere. Otherwise
    a socket or a file has its number, and gets what is written there; libuv ends a process that
    closes such a socket."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name, None) is None:
            # Open for as long as the process. The first that is missing gets the lowest number.
            stream = open(os.devnull, mode)  # noqa: SIM115
            # As those are that a process is started with.
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _tell(run: Invocation, error: BaseException) -> int:
    """Say what went wrong; return the exit code."""
    try:
        if isinstance(error, OSError):
            # What stdout did not take, such as help, it does not take now: that is what is told.
            sys.stdout.flush()
        if isinstance(error, click.exceptions.NoArgsIsHelpError):
            failure = _no_command(run, error)
        else:
            failure = explain(error)
            is_told = isinstance(error, Failure | click.ClickException | ConfigError)
            # Of an author's code the cause is shown, with all its lines.
            if run.settings.debug and (not is_told or error.__cause__ is not None):
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


def _hint(run: Invocation, error: BaseException, failure: Failure) -> str:
    """Return the next command after what no command has one for."""
    from dragoman.cli.hints import lines_of_json, next_after

    if failure.code == USAGE and "jsonl" in _formats(run) and (line := lines_of_json(run)):
        return line
    return next_after(run, error, failure, f"{_path(run)} --help")


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
    drop_stdout()
    return 0


def _leave_loudly(error: Exception) -> int:
    """What was to be read is not written: say so where there is still a place for it."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    with suppress(OSError, ValueError):
        sys.stderr.write(f"Error: stdout cannot be written: {reason}\n")
        sys.stderr.flush()
    _leave_quietly()
    return 1
