"""Find an author's agents, or an operator's event hooks: in a file, or as `module:name`.

Objects that are not an `Agent` are left to `find`, which rooms above provide: it adapts them.
"""

import importlib
import importlib.util
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dragoman.authoring.agent import Agent
from dragoman.engine.event_hooks import EventHooks
from dragoman.engine.running.author_code import author_place
from dragoman.errors import ConfigError

# Makes an agent of what a target's module has: the module, the name after the colon, the target.
Find = Callable[[ModuleType, str, str], Agent]
# Makes an agent of what answers at an address.
Reach = Callable[[str], Agent]


def load_agents(
    targets: Sequence[str], find: Find | None = None, reach: Reach | None = None
) -> list[Agent]:
    """Return the agents of all targets; raises `ConfigError` saying what is missing."""
    return [agent for target in targets for agent in _load(target, find, reach)]


def _load(target: str, find: Find | None, reach: Reach | None) -> list[Agent]:
    if reach is not None and target.startswith(("http://", "https://")):
        return [reach(target)]
    module_name, _, attribute = target.partition(":")
    module = load_module(module_name, target)
    if attribute:
        found: Any = getattr(module, attribute, None)
        if not isinstance(found, Agent):
            if find is not None:
                return [find(module, attribute, target)]
            raise ConfigError(f"{target}: {attribute} is not an Agent")
        return [found]
    agents = [value for value in vars(module).values() if isinstance(value, Agent)]
    if not agents:
        if find is not None:
            return [find(module, "", target)]
        raise ConfigError(f"{target}: no Agent in it; write `agent = Agent(...)` at its top level")
    return list(dict.fromkeys(agents))


def load_module(module_name: str, target: str) -> ModuleType:
    """Return the module that a target names; raises `ConfigError` saying what is missing."""
    path = Path(module_name)
    try:
        if path.suffix == ".py" or path.is_file():
            return _from_file(path)
        return _from_name(module_name, target)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{author_place(error) or target}: it imports {error.name}, but there is no module "
            f"named {error.name}; install it beside dragoman",
            remedy=f"pip install {error.name}",
        ) from None
    except SyntaxError as error:
        raise ConfigError(
            f"{error.filename}, line {error.lineno}: {error.msg}", remedy="--debug"
        ) from error
    except KeyboardInterrupt:
        raise
    except Exception as error:
        is_told = isinstance(error, ConfigError)
        about = str(error) if is_told else f"{type(error).__name__}: {error}"
        if not (place := author_place(error)):
            raise
        raise ConfigError(f"{place}: {about}", remedy="--debug") from error
    except BaseException as error:
        # Such as a script that ends with `sys.exit()`: the server would end without a message.
        raise ConfigError(
            f"{target}: it raised {type(error).__name__} while it was loaded; what it runs as a "
            'program belongs below `if __name__ == "__main__":`'
        ) from error


def _from_name(name: str, target: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{target!r} is neither a file nor a module; try my_agent.py")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A module that the author's own code imports and lacks is reported by the caller.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"{target}: no module {error.name}; for a file, add .py") from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise _no_file(path)
    # As `python file.py` does, so that modules beside the agent can be imported.
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def _no_file(path: Path) -> ConfigError:
    """Return the error that names the file that was perhaps meant."""
    from difflib import get_close_matches

    there = sorted(str(one) for one in path.parent.glob("*.py"))
    if near := get_close_matches(str(path), there, 1, 0.75):
        text = f"{path}: no such file; did you mean {near[0]}?"
        return ConfigError(text, meant=(str(path), near[0]))
    remedy = f"ls {shlex.quote(str(path.parent))}" if there else "dragoman init"
    return ConfigError(f"{path}: no such file", remedy=remedy)


def load_hooks(targets: Sequence[str]) -> list[EventHooks]:
    """Return the hooks of all targets, in their order; raises `ConfigError`."""
    return [hooks for target in targets for hooks in _hooks_in(target)]


def _hooks_in(target: str) -> list[EventHooks]:
    module_name, _, attribute = target.partition(":")
    module = load_module(module_name, target)
    if attribute:
        found: Any = getattr(module, attribute, None)
        if not isinstance(found, EventHooks):
            raise ConfigError(f"{target}: {attribute} is not EventHooks")
        return [found]
    hooks = [value for value in vars(module).values() if isinstance(value, EventHooks)]
    if not hooks:
        raise ConfigError(f"{target}: write `hooks = EventHooks()` at its top level")
    return list(dict.fromkeys(hooks))
