"""Spans and metrics of loops: tokens and seconds always, spans while tracing is on."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from dragoman.agents.models import TokenUsage
from dragoman.telemetry import tracing
from dragoman.telemetry.metrics import Counter, Histogram

tokens = Counter(
    "dragoman_model_tokens_total",
    "Tokens of model calls: input (read) or output (written).",
    "direction",
    otel="llm.tokens",
)
model_seconds = Histogram(
    "dragoman_model_seconds",
    "Seconds a model call took.",
    "outcome",
    otel="llm.call.duration",
    scale=1000.0,
)


@contextmanager
def span(name: str, attributes: Mapping[str, Any]) -> Generator[tracing.Span | None]:
    """Trace the block, if tracing is on."""
    if not tracing.on:
        yield None
        return
    begun = tracing.begin(name, attributes)
    begun.enter()
    try:
        yield begun
    except BaseException as error:
        begun.fail(type(error).__name__)
        raise
    finally:
        begun.leave()
        begun.end()


@contextmanager
def model_call(attributes: Mapping[str, Any]) -> Generator[tracing.Span | None]:
    """Trace and time a model call."""
    began = time.perf_counter()
    outcome = "failed"
    try:
        with span("llm.call", attributes) as begun:
            yield begun
        outcome = "ok"
    finally:
        model_seconds.add(time.perf_counter() - began, outcome)


def count(usage: TokenUsage, begun: tracing.Span | None) -> None:
    """Count a call's tokens."""
    tokens.add("input", by=usage.input)
    tokens.add("output", by=usage.output)
    if begun is not None:
        begun.set(
            {
                "gen_ai.usage.input_tokens": usage.input,
                "gen_ai.usage.output_tokens": usage.output,
            }
        )
