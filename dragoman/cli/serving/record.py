"""`dragoman record`: a proxy that writes down a conversation with an agent."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.option import option
from dragoman.cli.serving.script_options import PLAYING, leave, place_of, ready

if TYPE_CHECKING:
    # Brings the server: loaded when one is started.
    from dragoman.testing.scripted.serve import ListenOptions


@command("record")
@click.argument("ref", required=False, metavar="[REF]")
@PLAYING
@option("--save", default="", metavar="<cassette>", help="The file to write; it must not exist.")
@option(
    "--redact",
    multiple=True,
    metavar="<name>",
    help="A header, parameter or member that is not written either. Repeatable.",
)
def record(
    run: Invocation, ref: str | None, save: str, redact: tuple[str, ...], **given: Any
) -> None:
    """Pass requests on to the agent REF and write both sides to a cassette.

    Callers use the address that is printed as if it were the agent's. Credentials are passed on
    and never written: see docs/testing.md for what counts as one.
    """
    run.settings.agent_card = ref or run.settings.agent_card
    if not run.settings.agent_card:
        raise usage("which agent? record <ref> names it", "dragoman record localhost:8000")
    if not save:
        raise usage("where to? --save <cassette> names the file", remedy="--save cassette.jsonl")
    place = place_of(given)
    asyncio.run(_record(run, Path(save), redact, place))


async def _record(
    run: Invocation, save: Path, redact: tuple[str, ...], place: "ListenOptions"
) -> None:
    from dragoman.cli.session import dialling, looking
    from dragoman.testing.cassettes.cassette import CassetteWriter
    from dragoman.testing.cassettes.recorder import Recorder
    from dragoman.testing.cassettes.redaction import CassetteRedaction
    from dragoman.testing.scripted.serve import serving, stopped_by_signals

    async with looking(run) as agent, dialling(run) as egress:
        card, raw = await agent.look(fresh=True), agent.raw_card
        redaction = CassetteRedaction(redact, raw)
        recorder = Recorder(card, raw, egress, redaction, agent.card_origin)
        writer = CassetteWriter(save, recorder.head)
        recorder.sink = writer
        stop = stopped_by_signals()
        try:
            async with serving(recorder, place) as url:
                ready(run, url, {"cassette": str(save)})
                number = await stop
        finally:
            writer.close()
        run.out.note("Recorded", f"{recorder.count} exchanges in {save}")
    leave(number)
