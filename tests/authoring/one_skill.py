"""An agent with one skill, and what comes of a message to it."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
from harness.serving import serving

from dragoman import Agent


@dataclass
class Order:
    item: str
    count: int = 1


class Point(msgspec.Struct):
    x: int
    y: int


class Options(TypedDict):
    loud: bool


def made(function: Callable[..., Any], **options: Any) -> Agent:
    agent = Agent("One", "Has one skill.")
    agent.skill(**options)(function)
    return agent


async def result(function: Callable[..., Any], *parts: Any, **more: Any) -> Any:
    """Return the task that a message with such parts leads to."""
    async with serving(made(function)) as site:
        said = [{"text": part} if isinstance(part, str) else part for part in parts]
        return await site.send(None, parts=said, **more)


def shown(task: Any) -> Any:
    """Return the parts of a completed task's only artifact."""
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
    (artifact,) = task["artifacts"]
    return artifact["parts"]


def raw(content: bytes, **more: Any) -> dict[str, Any]:
    return {"raw": base64.b64encode(content).decode(), **more}


def plain(text: str) -> str:
    return f"plain {text}"
