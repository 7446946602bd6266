"""Find the event hooks that an operator names: in a file, or as `module:name`."""

from collections.abc import Sequence
from typing import Any

from dragoman.engine.event_hooks import EventHooks
from dragoman.errors import ConfigError
from dragoman.server.load import load_module


def load_hooks(targets: Sequence[str]) -> list[EventHooks]:
    """Return the hooks of all targets, in their order; raises `ConfigError`."""
    return [hooks for target in targets for hooks in _load(target)]


def _load(target: str) -> list[EventHooks]:
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
