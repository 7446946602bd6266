"""A function as an agent of one skill: plain or async, returning or yielding."""

import inspect
from collections.abc import Callable
from typing import Any

from dragoman.errors import ConfigError
from dragoman.server.agent import Agent


def function_agent(function: Callable[..., Any], name: str) -> Agent:
    """Return an agent whose one skill is a function, or an object that can be called."""
    called = function if inspect.isroutine(function) else function.__call__
    about = _about(called) or f"Runs {name}."
    agent = Agent(titled(name), about.partition("\n")[0])
    add_skill(agent, called, name)
    return agent


def add_skill(agent: Agent, function: Callable[..., Any], name: str) -> None:
    """Make a function a skill; raises `ConfigError` if no message can fill its arguments."""
    try:
        agent.skill(id=name, description=_about(function) or f"Runs {name}.")(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} cannot be a skill: {error}") from error


def titled(name: str) -> str:
    """Return a name of Python as people write it."""
    return name.replace("_", " ").strip().capitalize() or "Agent"


def _about(function: Callable[..., Any]) -> str:
    return inspect.getdoc(function) or ""
