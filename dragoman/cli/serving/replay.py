"""`dragoman replay`: serve a recorded conversation, or hold a live agent to it."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.serving.script_options import PLAYING, leave, place_of, serve

if TYPE_CHECKING:
    from dragoman.testing.cassettes.cassette import Cassette
    from dragoman.testing.cassettes.comparison import Difference
    from dragoman.testing.cassettes.matching import Match


@command("replay")
@click.argument("cassette", metavar="CASSETTE")
@PLAYING
@option(
    "--match",
    type=click.Choice(["strict", "loose"]),
    default="loose",
    help="Whether ids and times count when a request is looked up (loose: no).",
)
@option(
    "--speed",
    type=click.FloatRange(0),
    default=1.0,
    metavar="<x>",
    help="2 is twice as fast as it was, 0 waits for nothing (1).",
)
@option("--against", default="", metavar="<ref>", help="Ask this live agent and compare instead.")
@option("--strict", switch=True, help="With --against: exit 1 if anything differs.")
def replay(
    run: Invocation,
    cassette: str,
    match: str,
    speed: float,
    against: str,
    strict: bool,
    **given: Any,
) -> None:
    """Serve CASSETTE as the agent it was recorded from.

    With --against no port is opened: the recorded requests go to a live agent, with the credentials
    of this command line, and the differences in its answers are printed.
    """
    from dragoman.testing.cassettes.cassette import read

    recorded = read(Path(cassette))
    if against:
        asyncio.run(_compare(run, recorded, against, strict=strict))
        return
    from dragoman.testing.cassettes.replayer import Replayer

    app = Replayer(recorded, match=cast("Match", match), speed=speed)
    number = serve(run, app, place_of(given), exchanges=len(recorded.exchanges))
    for request in app.missed:
        run.out.warn(f"no recording fits {request.method} {request.path}")
    leave(number)


async def _compare(run: Invocation, cassette: "Cassette", ref: str, *, strict: bool) -> None:
    from dragoman.cli.session import credentials_of, dialling, looking
    from dragoman.testing.cassettes.comparison import Comparison

    run.settings.agent_card = ref
    found: list[Difference] = []
    async with looking(run) as agent, dialling(run) as http:
        card = await agent.look(fresh=True)
        comparison = Comparison(
            cassette, card, http, credentials_of(run), agent.origins, agent.card_origin
        )
        async with asyncio.timeout(run.settings.timeout or None):
            async for difference in comparison.run():
                found.append(difference)
                if not run.out.is_json or run.out.is_stream:
                    _show(run, difference)
    if not run.out.is_json:
        run.out.field("Exchanges", str(comparison.count))
        run.out.field("Differences", str(len(found)))
    elif not run.out.is_stream:
        run.out.json({"exchanges": comparison.count, "differences": [_plain(one) for one in found]})
    if strict and found:
        # What was found is said; an error beside it would be a second document.
        raise click.exceptions.Exit(1)


def _show(run: Invocation, difference: "Difference") -> None:
    if run.out.is_json:
        run.out.json(_plain(difference))
        return
    run.out.field("Exchange", f"{difference.number} {difference.method}")
    run.out.field("Member", difference.at or "(whole)")
    run.out.field("Recorded", _value_text(difference.recorded))
    run.out.field("Live", _value_text(difference.live))


def _plain(difference: "Difference") -> dict[str, Any]:
    import msgspec

    return msgspec.to_builtins(difference)


def _value_text(value: Any) -> str:
    import msgspec

    return "(absent)" if value is msgspec.UNSET else msgspec.json.encode(value).decode()
