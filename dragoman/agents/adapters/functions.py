"""A function as an agent of one skill: plain or async, returning or yielding."""

import inspect
from collections.abc import Callable
from typing import Any

from dragoman.authoring.agent import Agent
from dragoman.errors import ConfigError


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
    """Return a title for a name in Python."""
    return name.replace("_", " ").strip().capitalize() or "Agent"


def own_title(found: Any, name: str) -> str:
    """Return the name that an object of a framework has, else a title for its name in Python."""
    own = getattr(found, "name", None)
    return own if isinstance(own, str) and own.strip() else titled(name)


def _about(function: Callable[..., Any]) -> str:
    return inspect.getdoc(function) or ""
