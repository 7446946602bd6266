"""Agents with the members that selectools' server uses, and none of selectools."""

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SECRET = "the system prompt says sesame"


@dataclass
class Tool:
    name: str
    description: str


@dataclass
class Config:
    name: str = "researcher"
    system_prompt: str = SECRET


@dataclass
class Result:
    content: str


@dataclass
class Researcher:
    """Repeats what it was told so far, as an agent with a history would."""

    config: Config = field(default_factory=Config)
    tools: list[Tool] = field(default_factory=lambda: [Tool("summarize", "Summarize a text")])
    answer: Callable[[str], str] = "Echo: {}".format
    history: list[str] = field(default_factory=list[str])
    clones: list["Researcher"] = field(default_factory=list["Researcher"])

    def clone_for_isolation(self) -> "Researcher":
        clone = copy.copy(self)
        clone.history = []
        self.clones.append(clone)
        return clone

    def run(self, messages: list[Any]) -> Result:
        self.history += [message.content for message in messages]
        return Result(self.answer("|".join(self.history)))


class Gate:
    """Holds an agent's answer until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self, text: str) -> str:
        self.entered.set()
        assert self._opened.wait(60)
        return f"Late: {text}"

    def open(self) -> None:
        self._opened.set()
