"""Which adapter fits an object, by the members it has: no framework is imported to find out.

A target names an object of a module, or only the module: then it is `agent` of the module, or its
only object of a framework. Functions and classes are served only if they are named.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from dragoman.authoring.agent import Agent
from dragoman.errors import ConfigError

_HERE = "dragoman.agents.adapters"
_MISSING = object()
# Names that the tutorials of the frameworks use, for modules with several objects.
_USUAL = ("agent", "root_agent", "graph", "app", "crew", "runner")


class Framework(NamedTuple):
    """A kind of object: the members it has, and the function that makes an agent of it."""

    title: str
    members: tuple[str, ...]
    module: str
    function: str


FRAMEWORKS = (
    Framework(
        "a compiled LangGraph graph",
        ("astream", "aget_state", "checkpointer"),
        "langgraph",
        "langgraph_agent",
    ),
    Framework(
        "a Pydantic AI agent",
        ("run", "run_stream", "iter", "output_type"),
        "pydantic_ai",
        "pydantic_ai_agent",
    ),
    Framework(
        "an OpenAI Agents SDK agent",
        ("instructions", "handoffs", "as_tool", "model_settings"),
        "openai_agents",
        "openai_agents_agent",
    ),
    Framework(
        "a CrewAI crew", ("kickoff", "tasks", "agents", "fetch_inputs"), "crewai", "crew_agent"
    ),
    Framework("a CrewAI agent", ("kickoff", "role", "goal", "backstory"), "crewai", "crew_member"),
    Framework("an ADK agent", ("run_async", "sub_agents", "name"), "adk", "adk_agent"),
    Framework("an ADK runner", ("run_async", "session_service", "app_name"), "adk", "adk_runner"),
    Framework(
        "an object with selectools' clone_for_isolation() and run()",
        ("clone_for_isolation", "run"),
        "selectools_like",
        "selectools_agent",
    ),
)

UNDERSTOOD = ", ".join(
    [
        "an Agent",
        "a function or generator",
        "a class or object whose public methods have docstrings",
        *(framework.title for framework in FRAMEWORKS),
    ]
)


def adapt(found: Any, name: str) -> Agent:
    """Return any object as an agent; raises `ConfigError` that lists what can be served."""
    if isinstance(found, Agent):
        return found
    # Loaded where something else is served.
    from dragoman.agents.adapters import classes, functions

    if isinstance(found, type):
        found = classes.instance_of(found, name)
    framework = framework_of(found)
    if framework is not None:
        make: Callable[[Any, str], Agent] = getattr(
            import_module(f"{_HERE}.{framework.module}"), framework.function
        )
        return make(found, name)
    if inspect.isroutine(found):
        return functions.function_agent(found, name)
    if _is_author_code(found):
        if classes.methods_of(found):
            return classes.object_agent(found, name)
        if callable(found):
            return functions.function_agent(found, name)
    raise ConfigError(f"{name} is {_described(found)}; {_advice(found)}")


def agent_in(module: ModuleType, attribute: str, target: str) -> Agent:
    """Return the object that a target names in a module, as an agent; raises `ConfigError`."""
    if attribute:
        found = getattr(module, attribute, _MISSING)
        if found is _MISSING:
            from difflib import get_close_matches

            there = _candidates(module)
            near = get_close_matches(attribute, there, 1) or there[:1]
            raise ConfigError(
                f"{target}: {attribute} is not an Agent: there is no {attribute} in it, but "
                + (", ".join(there) or "nothing that can be served"),
                meant=(target, target.removesuffix(attribute) + near[0]) if near else None,
            )
    else:
        attribute = _chosen(module, target)
        found = getattr(module, attribute)
    name = module.__name__.rpartition(".")[2] if attribute in _USUAL else attribute
    try:
        return adapt(found, name)
    except ConfigError as error:
        raise ConfigError(f"{target}: {error}", remedy=error.remedy) from error.__cause__


def agent_at(address: str) -> Agent:
    """Return the chat model at an address, `http://host/v1#model`, as an agent."""
    from dragoman.agents.adapters.chat_url import chat_agent

    return chat_agent(address)


def framework_of(found: Any) -> Framework | None:
    """Return the framework of an object, if it is a known one."""
    return next((each for each in FRAMEWORKS if all(_has(found, m) for m in each.members)), None)


def _has(found: Any, member: str) -> bool:
    """Tell whether an object has a member, without running any code of it."""
    if inspect.getattr_static(found, member, _MISSING) is not _MISSING:
        return True
    # Only the class knows fields of a model without a default.
    kind: type = found.__class__
    return member in getattr(kind, "model_fields", ())


def _chosen(module: ModuleType, target: str) -> str:
    if hasattr(module, "agent"):
        return "agent"
    there = {name: value for name, value in vars(module).items() if framework_of_any(value)}
    names = [name for name in _USUAL if name in there] or list(there)
    if len({id(there[name]) for name in names}) == 1:
        return names[0]
    if names:
        raise ConfigError(
            f"{target}: there are {', '.join(names)} in it; say which, as in {target}:{names[0]}",
            meant=(target, f"{target}:{names[0]}"),
        )
    found = _candidates(module)
    example = f" or serve one of {', '.join(found)}, as in {target}:{found[0]}" if found else ""
    raise ConfigError(
        f"{target}: no Agent in it; write `agent = Agent(...)` at its top level{example}",
        meant=(target, f"{target}:{found[0]}") if found else None,
    )


def framework_of_any(value: Any) -> bool:
    """Tell whether a value of a module is an object of a framework, rather than a class of it."""
    is_named_only = isinstance(value, type | ModuleType) or inspect.isroutine(value)
    return not is_named_only and framework_of(value) is not None


def _candidates(module: ModuleType) -> list[str]:
    """Return the names that a module defines and that could be served."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Agent) or framework_of_any(value) or _is_defined(value, module))
    ]


def _is_defined(value: Any, module: ModuleType) -> bool:
    is_code = inspect.isfunction(value) or isinstance(value, type)
    return is_code and value.__module__ == module.__name__


def _is_author_code(found: Any) -> bool:
    """Tell whether an object has a class of its own: it is not a plain value, a module or a
    coroutine that was meant to be awaited."""
    return type(found).__module__ != "builtins" and not inspect.isawaitable(found)


def _described(found: Any) -> str:
    kind: type = found.__class__
    if found is None or kind.__module__ == "builtins":
        return "None" if found is None else f"of the type {kind.__name__}"
    return f"of the class {kind.__module__}.{kind.__qualname__}"


def _advice(found: Any) -> str:
    if _has(found, "add_node") and _has(found, "compile"):
        return "a graph is served once it is compiled: agent = graph.compile()"
    if inspect.iscoroutine(found) or inspect.isgenerator(found) or inspect.isasyncgen(found):
        return "serve the function itself, without calling it"
    return f"what can be served is {UNDERSTOOD}"
