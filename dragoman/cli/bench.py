"""`dragoman bench`: how an agent does under load, seen by our own client.

With `--rate` requests begin at fixed times, and a request that had to wait for its turn has waited:
its latency counts from when it should have begun. Without, each of the callers asks again as soon
as it was answered.
"""

import asyncio
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
from dragoman.cli.own import YES, Duration, added, own

if TYPE_CHECKING:
    # Heavy: loaded when an agent is called.
    from dragoman.cli.session import Session
    from dragoman.client.content import Content

SCENARIOS = ("send", "stream", "get", "mixed")
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
        own(
            "--report",
            type=click.Path(dir_okay=False, path_type=Path),
            in_environment=False,
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
    """Put load on an agent and show how it does. It is asked to work: tasks are made.

    An agent of another machine is left alone unless you say --yes.
    """
    from dragoman.cli.session import talk

    if ref:
        run.settings.agent_card = ref
    if duration <= 0:
        raise usage("--duration must be longer than nothing")
    if run.settings.agent_card and not yes:
        from dragoman.client.references import parse

        # Before anybody is asked for a card, where the reference itself says enough.
        check_address(parse(run.settings.agent_card).url)
    content = _content(payload)
    found: list[dict[str, Any]] = []

    async def work(session: "Session") -> None:
        if not yes:
            check_address(session.agent.interface.url)
        load = Load(session, scenario, content, rate, concurrency)
        await load.prepare()
        if warmup:
            await load.run(warmup)
        load.reset()
        seconds = await load.run(duration)
        found.append(load.figures(seconds))

    talk(run, work)
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
    from dragoman.client.origins import is_loopback
    from dragoman.security.targets import read_target

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


class Load:
    """Callers that keep an agent busy, and what they saw."""

    def __init__(
        self,
        session: "Session",
        scenario: str,
        content: "Content",
        rate: float | None,
        concurrency: int,
    ) -> None:
        self._out = session.out
        self._agent = session.agent
        self._scenario = scenario
        self._content = content
        self._rate = rate
        self._concurrency = concurrency
        self._task_id = ""
        deeds: dict[str, Callable[[], Awaitable[str]]] = {
            "send": self._send,
            "stream": self._stream,
            "get": self._get,
        }
        names = list(deeds) if scenario == "mixed" else [scenario]
        self._deeds = [(name, deeds[name]) for name in names]
        self.reset()

    def reset(self) -> None:
        """Forget what was measured."""
        self._taken: dict[str, list[float]] = {name: [] for name, _ in self._deeds}
        self._errors: Counter[str] = Counter()
        self._begun = 0

    async def prepare(self) -> None:
        """Make what `get` asks for; an agent that does not answer is noticed here."""
        if self._scenario in ("get", "mixed"):
            answer = await self._agent.send(self._content)
            if not answer.task_id:
                raise usage("this agent answers without tasks, so there is none to get")
            self._task_id = answer.task_id

    async def run(self, seconds: float) -> float:
        """Ask for so long; return how long it took until the last answer."""
        began = time.monotonic()
        self._begun = 0
        telling = asyncio.create_task(self._tell())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(self._caller(began, began + seconds))
        finally:
            telling.cancel()
        return time.monotonic() - began

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TELL)
            failed = sum(self._errors.values())
            self._out.note("Progress", f"{self._done} requests, {failed} failed")

    @property
    def _done(self) -> int:
        return sum(len(taken) for taken in self._taken.values())

    async def _caller(self, began: float, until: float) -> None:
        while True:
            number, self._begun = self._begun, self._begun + 1
            at = time.monotonic()
            if self._rate is not None:
                at = began + number / self._rate
                if at < until:
                    await asyncio.sleep(max(0.0, at - time.monotonic()))
            if at >= until or time.monotonic() >= until:
                return
            name, deed = self._deeds[number % len(self._deeds)]
            if problem := await _problem(deed):
                self._errors[problem] += 1
            self._taken[name].append(time.monotonic() - at)

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

    def figures(self, seconds: float) -> dict[str, Any]:
        """Return what was measured; times are milliseconds."""
        everything = [one for taken in self._taken.values() for one in taken]
        return {
            "scenario": self._scenario,
            "concurrency": self._concurrency,
            "rate": self._rate,
            "seconds": round(seconds, 3),
            "requests": len(everything),
            "errors": dict(sorted(self._errors.items())),
            "perSecond": round(len(everything) / seconds, 1),
            "latency": _spread(everything),
            "operations": {name: _spread(taken) for name, taken in self._taken.items()},
        }


async def _problem(deed: Callable[[], Awaitable[str]]) -> str:
    """Do it; return the class of what went wrong."""
    from dragoman.errors import A2AError

    try:
        return await deed()
    except A2AError as error:
        return code_of(error)


def _ended(answer: Any) -> str:
    """Return the state of a task that did not end well; empty: it did."""
    from dragoman.model.task import TaskState

    bad = (TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED)
    return answer.state.value if answer.state in bad else ""


def _spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)

    def share(part: float) -> float:
        if not ordered:
            return 0.0
        return round(1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)

    return {"p50": share(0.5), "p90": share(0.9), "p99": share(0.99), "max": share(1.0)}


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
