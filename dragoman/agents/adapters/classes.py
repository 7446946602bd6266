"""A class, or an object, as an agent: each public method with a docstring is a skill.

A class is instantiated once. Each request then uses a copy of that object, so that callers share no
state; an object may define `clone_for_isolation` to make the copy.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from dragoman.agents.adapters.functions import add_skill, titled
from dragoman.agents.adapters.wrapping import cloning
from dragoman.authoring.agent import Agent
from dragoman.engine.signatures import signature_of
from dragoman.errors import ConfigError


def instance_of(kind: type, name: str) -> Any:
    """Return an instance of a class; raises `ConfigError` if it needs arguments."""
    try:
        signature_of(kind).bind()
    except TypeError as error:
        raise ConfigError(
            f"{name} cannot be instantiated without arguments ({error}); serve an instance of it:"
            f" agent = {name}(...)"
        ) from None
    except ValueError:
        # Some classes written in C have no signature.
        pass
    return kind()


def methods_of(found: Any) -> list[str]:
    """Return the names of the public methods with a docstring, in the order of definition."""
    names: dict[str, None] = {}
    for kind in reversed(type(found).__mro__[:-1]):
        for name, value in vars(kind).items():
            is_function = inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)
            if is_function and not name.startswith("_") and name != "clone_for_isolation":
                names[name] = None
    return [name for name in names if inspect.getdoc(getattr(found, name))]


def object_agent(found: Any, name: str) -> Agent:
    """Return an agent whose skills are the methods of an object."""
    clone = cloning(found, name)
    kind: type = found.__class__
    about = (inspect.getdoc(kind) or "").partition("\n")[0]
    agent = Agent(titled(name), about or f"Offers what {name} can do.")
    for method in methods_of(found):
        add_skill(agent, _on_a_copy(getattr(found, method), method, clone), method)
    return agent


def _on_a_copy(bound: Callable[..., Any], name: str, clone: Callable[[], Any]) -> Any:
    """Return a function of the same kind as a method that uses a copy of its object."""

    def method() -> Callable[..., Any]:
        return getattr(clone(), name)

    if inspect.iscoroutinefunction(bound):

        @functools.wraps(bound)
        async def awaited(**arguments: Any) -> Any:
            return await method()(**arguments)

        return awaited
    if inspect.isasyncgenfunction(bound):

        @functools.wraps(bound)
        async def yielded(**arguments: Any) -> AsyncGenerator[Any]:
            async for chunk in method()(**arguments):
                yield chunk

        return yielded
    if inspect.isgeneratorfunction(bound):

        @functools.wraps(bound)
        def generated(**arguments: Any) -> Generator[Any]:
            yield from method()(**arguments)

        return generated

    @functools.wraps(bound)
    def called(**arguments: Any) -> Any:
        return method()(**arguments)

    return called
