"""Finds an `A2AServer` in a module, ours or selectools' own, for `dragoman serve`."""

from types import ModuleType
from typing import Any, cast

from dragoman.compat.selectools.server import A2AServer
from dragoman.errors import ConfigError

# The attributes of selectools' server, by the names of our arguments.
_ATTRIBUTES = {
    "agent": "_agent",
    "auth_token": "_auth_token",
    "name": "_name",
    "description": "_description",
    "url": "_url",
    "version": "_version",
    "max_tasks": "_max_tasks",
    "max_body_bytes": "_max_body_bytes",
}


def server_in(module: ModuleType, attribute: str, target: str) -> A2AServer | None:
    """Return the server that a target names; None: it names something else. A server in a module
    takes precedence over agents, because it has the authentication."""
    members = vars(module)
    if attribute:
        return _ours(members.get(attribute), f"{target}: {attribute}")
    found = {id(value): name for name, value in members.items() if _is_server(value)}
    names = list(found.values())
    if len(names) > 1:
        raise ConfigError(
            f"{target}: there are {', '.join(names)} in it; say which, as in {target}:{names[0]}"
        )
    return _ours(members[names[0]], f"{target}: {names[0]}") if names else None


def _is_server(value: Any) -> bool:
    # By its name, so that selectools need not be installed.
    return not isinstance(value, type) and type(value).__name__ == A2AServer.__name__


def _ours(value: Any, where: str) -> A2AServer | None:
    if isinstance(value, A2AServer):
        return value
    if not _is_server(value):
        return None
    attributes: dict[str, Any] = {**vars(cast(object, value))}
    if not attributes.keys() >= {*_ATTRIBUTES.values()}:
        raise ConfigError(
            f"{where} is an A2AServer of another kind; import it from dragoman.compat.selectools"
        )
    arguments: dict[str, Any] = {
        name: attributes[attribute] for name, attribute in _ATTRIBUTES.items()
    }
    return A2AServer(**arguments)
