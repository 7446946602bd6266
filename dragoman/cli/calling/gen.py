"""`dragoman gen`: Python modules written from an agent's card."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dragoman.cli.calling.saving import save_whole
from dragoman.cli.failures import CARD_INVALID, Failure, usage
from dragoman.cli.grammar import CommandPlace, Group, command
from dragoman.cli.hints import again
from dragoman.cli.hints import command as next_command
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.own_options import added

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.model.card import AgentCard

gen = Group(
    "gen",
    help="Write Python from an agent's card: calls that a type checker understands.",
    places={
        "client": CommandPlace("calling.gen:client", "Write typed calls of an agent's skills."),
        "types": CommandPlace("calling.gen:types", "Write only the types of its skills."),
    },
)

_FILE = added(
    [
        option(
            "--save",
            default="",
            takes_output=True,
            metavar="<path>",
            help="The module to write (stdout). -o <path> is the same, unless the path is the "
            "name of a format.",
        ),
        option("--force", switch=True, help="Replace the file if it exists."),
        option("--check", switch=True, help="Write nothing; fail unless the file is up to date."),
    ]
)


@command("client")
@click.argument("ref", required=False)
@_FILE
def client(run: Invocation, ref: str | None, save: str, force: bool, check: bool) -> None:
    """Write a Python module with a typed method for each skill of an agent.

    REF, or -a, is a host, URL or card file. The module needs dragoman and nothing else, passes
    strict type checkers, and says so when the agent's card has changed since.
    """

    def write(card: "AgentCard", address: str) -> str:
        from dragoman.generation.client_module import client_module

        return client_module(card, address)

    _generate(run, ref, save, force=force, check=check, write=write)


@command("types")
@click.argument("ref", required=False)
@_FILE
def types(run: Invocation, ref: str | None, save: str, force: bool, check: bool) -> None:
    """Write a Python module with the types of an agent's arguments and results.

    REF, or -a, is a host, URL or card file.
    """

    def write(card: "AgentCard", address: str) -> str:
        from dragoman.generation.client_module import types_module

        return types_module(card)

    _generate(run, ref, save, force=force, check=check, write=write)


def _generate(
    run: Invocation,
    ref: str | None,
    save: str,
    *,
    force: bool,
    check: bool,
    write: "Callable[[AgentCard, str], str]",
) -> None:
    """Read the card, and write or compare what comes of it."""
    run.take_reference(ref)
    if check and not save:
        raise usage("--check needs the file to compare: -o <path>", remedy="-o <path>")
    from dragoman.cli.session import guarded, looking
    from dragoman.errors import ConfigError

    target = run.folder / Path(save).expanduser()

    async def work() -> None:
        async with looking(run) as agent:
            card = await agent.look(fresh=True)
        try:
            source = write(card, _address(run.settings.agent_card))
        except ConfigError as error:
            raise Failure(CARD_INVALID, str(error), hint=next_command(run, "card", "get")) from None
        if not save:
            run.out.write(source)
            return
        if check:
            _compare(run, target, source)
        else:
            save_whole(target, source.encode(), force)
        run.out.item({"path": str(target)}, {"path": "File"})

    guarded(run, work)


def _address(ref: str) -> str:
    """Return a reference without what only its user may know."""
    scheme, mark, rest = ref.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _compare(run: Invocation, path: Path, source: str) -> None:
    try:
        is_same = path.read_text(encoding="utf-8") == source
    except (OSError, UnicodeDecodeError):
        is_same = False
    if not is_same:
        raise Failure(
            CARD_INVALID,
            f"{path} is not what the agent's card says now; write it anew",
            hint=again(run, "--force", off=("--check",)),
        )
