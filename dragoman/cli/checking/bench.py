"""`dragoman bench`: how an agent does under load, seen by our own client.

With `--rate` requests are due at fixed times; a latency counts from then, so waiting for a free
caller counts too. Without, each caller asks again as soon as it was answered.
"""

import asyncio
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dragoman.cli.failures import code_of, usage
from dragoman.cli.grammar import command
from dragoman.cli.invocation import Invocation
from dragoman.cli.own_options import YES, Duration, added, own, typed_option

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.cli.session import Session
    from dragoman.client.content import Content
    from dragoman.testing.load import Load, Tally

SCENARIOS = ("send", "stream", "get", "mixed")
_SHOW = 0.5
_TELL = 2.0
_OPTIONS = added(
    [
        own(
            "--scenario",
            type=click.Choice(SCENARIOS),
            default="send",
            metavar="<send|stream|get|mixed>",
            help="What callers do.",
        ),
        own(
            "--rate",
            type=click.FloatRange(0, min_open=True),
            metavar="<n>",
            help="Requests per second (as many as are answered).",
        ),
        own(
            "--concurrency",
            type=click.IntRange(1, 10_000),
            default=8,
            metavar="<n>",
            help="Callers at once.",
        ),
        own("--duration", type=Duration(), default="10s", metavar="<duration>", help="How long."),
        own(
            "--warmup",
            type=Duration(),
            default="1s",
            metavar="<duration>",
            help="How long before that, not counted.",
        ),
        own(
            "--payload",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="<path>",
            help='What is sent: a text, or data if it ends with .json ("hello").',
        ),
        typed_option(
            "--report",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="<path>",
            help="Write the figures to this file too, as JSON.",
        ),
        own(
            "--limit-p99",
            type=Duration(),
            metavar="<duration>",
            help="The longest that 99 of 100 requests may take.",
        ),
        own("--strict", switch=True, help="Exit with 1 on errors, or above --limit-p99."),
    ]
)


@command("bench")
@click.argument("ref", required=False)
@_OPTIONS
@YES
def bench(
    run: Invocation,
    ref: str | None,
    scenario: str,
    rate: float | None,
    concurrency: int,
    duration: float,
    warmup: float,
    payload: Path | None,
    report: Path | None,
    limit_p99: float | None,
    strict: bool,
    yes: bool,
) -> None:
    """Put load on an agent and show its figures. This begins real tasks.

    For an agent on another machine you must give --yes.
    """
    from dragoman.cli.session import talk

    if ref:
        run.settings.agent_card = ref
    if duration <= 0:
        raise usage("--duration must be longer than nothing")
    if run.settings.agent_card and not yes:
        from dragoman.client.cards.references import parse

        # Before the card is fetched, where the reference itself says enough.
        check_address(parse(run.settings.agent_card).url)
    content = _content(payload)
    found: list[dict[str, Any]] = []

    async def work(session: "Session") -> None:
        if not yes:
            check_address(session.agent.interface.url)
        load = AgentLoad(session, scenario, content)
        await load.prepare()
        if warmup:
            await load.run(warmup, rate, concurrency, doing="warming up")
        found.append(await load.run(duration, rate, concurrency))

    talk(run, work, live=True)
    (figures,) = found
    p99 = figures["latency"]["p99"]
    is_late = limit_p99 is not None and p99 > limit_p99 * 1000
    failed = sum(figures["errors"].values())
    if report is not None:
        import msgspec

        report.write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    _show(run, figures)
    if is_late:
        run.out.warn(f"p99 is {p99:g} ms, above --limit-p99")
    if failed:
        run.out.warn(f"{failed} of {figures['requests']} requests failed")
    if strict and (is_late or failed):
        sys.exit(1)


def check_address(url: str) -> None:
    """Refuse an agent that is not on this machine."""
    from dragoman.client.credentials.origins import is_loopback
    from dragoman.egress.targets import read_target

    if url and not is_loopback(read_target(url)):
        raise usage(
            f"{url} is not on this machine: load is for agents of your own; --yes says it is one"
        )


def _content(payload: Path | None) -> "Content":
    if payload is None:
        return "hello"
    text = payload.read_text(encoding="utf-8")
    if payload.suffix != ".json":
        return text
    import json

    from dragoman.model.message import Part

    try:
        return Part(data=json.loads(text), media_type="application/json")
    except ValueError:
        raise usage(f"{payload} is not JSON") from None


class AgentLoad:
    """Callers that keep an agent busy through our client, and the figures of it."""

    def __init__(self, session: "Session", scenario: str, content: "Content") -> None:
        self._out = session.out
        self._agent = session.agent
        self._scenario = scenario
        self._content = content
        self._task_id = ""
        operations: dict[str, Callable[[], Awaitable[str]]] = {
            "send": self._send,
            "stream": self._stream,
            "get": self._get,
        }
        names = list(operations) if scenario == "mixed" else [scenario]
        self._operations = itertools.cycle((name, operations[name]) for name in names)
        self._latencies: dict[str, list[float]] = {name: [] for name in names}
        self._errors: Counter[str] = Counter()

    async def prepare(self) -> None:
        """Make what `get` asks for; an agent that does not answer is noticed here."""
        if self._scenario in ("get", "mixed"):
            answer = await self._agent.send(self._content)
            if not answer.task_id:
                raise usage("this agent answers without tasks, so there is none to get")
            self._task_id = answer.task_id

    async def run(
        self, seconds: float, rate: float | None, concurrency: int, *, doing: str = "measuring"
    ) -> dict[str, Any]:
        """Ask for so long; return what was measured until the last answer, in milliseconds."""
        from dragoman.testing.load import Load, Tally

        self._errors.clear()
        for taken in self._latencies.values():
            taken.clear()
        load = Load(Tally, seconds=seconds, rate=rate, drain=math.inf)
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self._tell(doing))
            await load.run([_Caller(self, load, group) for _ in range(concurrency)])
            telling.cancel()
        passed = time.perf_counter() - load.tally.began
        everything = [one for taken in self._latencies.values() for one in taken]
        return {
            "scenario": self._scenario,
            "concurrency": concurrency,
            "rate": rate,
            "seconds": round(passed, 3),
            "requests": len(everything),
            "errors": dict(sorted(self._errors.items())),
            "perSecond": round(len(everything) / passed, 1),
            "latency": _spread(everything),
            "operations": {name: _spread(taken) for name, taken in self._latencies.items()},
        }

    async def _tell(self, doing: str) -> None:
        while True:
            await asyncio.sleep(_SHOW if self._out.is_live else _TELL)
            done, failed = sum(map(len, self._latencies.values())), sum(self._errors.values())
            if self._out.is_live:
                self._out.progress(f"{doing}  {done:,} requests, {failed:,} failed")
            else:
                self._out.note("Progress", f"{doing}: {done} requests, {failed} failed")

    async def ask(self, due: float) -> None:
        """Make one request that was due at this time."""
        from dragoman.errors import A2AError

        name, operation = next(self._operations)
        try:
            problem = await operation()
        except A2AError as error:
            problem = code_of(error)
        if problem:
            self._errors[problem] += 1
        self._latencies[name].append(time.perf_counter() - due)

    async def _send(self) -> str:
        answer = await self._agent.send(self._content)
        return _ended(answer)

    async def _stream(self) -> str:
        async with self._agent.stream(self._content) as events:
            async for _ in events:
                pass
            return _ended(events.answer)

    async def _get(self) -> str:
        await self._agent.get(self._task_id)
        return ""


class _Caller:
    """A caller of the load generator: each request is a task of the group."""

    def __init__(self, agent: AgentLoad, load: "Load[Tally]", group: asyncio.TaskGroup) -> None:
        self._agent = agent
        self._load = load
        self._group = group

    def begin(self, due: float) -> None:
        self._group.create_task(self._ask(due))

    async def _ask(self, due: float) -> None:
        await self._agent.ask(due)
        self._load.free(self)

    def abandon(self) -> None:
        """Never called: the client bounds every answer."""


def _ended(answer: Any) -> str:
    """Return the state of a task that did not end well; empty: it did."""
    from dragoman.model.task import TaskState

    bad = (TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED)
    return answer.state.value if answer.state in bad else ""


def _spread(seconds: list[float]) -> dict[str, float]:
    from dragoman.testing.load import percentile

    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        name: round(1000 * percentile(seconds, share), 3) if seconds else 0.0
        for name, share in shares.items()
    }


def _show(run: Invocation, figures: dict[str, Any]) -> None:
    out = run.out
    if out.is_json:
        out.json(figures)
        return
    out.field("Scenario", figures["scenario"])
    out.field("Requests", str(figures["requests"]))
    out.field("Per-Second", f"{figures['perSecond']:g}")
    for name, value in figures["latency"].items():
        out.field(name.capitalize(), f"{value:g} ms")
    if len(figures["operations"]) > 1:
        for name, spread in figures["operations"].items():
            shown = ", ".join(f"{part} {value:g} ms" for part, value in spread.items())
            out.field("Operation", f"{name}: {shown}")
    for name, number in figures["errors"].items():
        out.field("Error", f"{name} {number}")
    out.field("Errors", str(sum(figures["errors"].values())))
