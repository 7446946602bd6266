"""No class of the package shows a secret when it is printed: all of them are looked at."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import dragoman
from dragoman.security.secret_names import is_secret as is_secret_name

SECRET = "HUSH-7412"
# Flags about secrets.
FLAGS = re.compile(r"(is|has|posts)_")
# Fields that are named like secrets and are none.
HARMLESS = {
    "_Parameter.key": "the name of a property on the wire",
    "page_token": "a place in a list, bound to its owner",
    "next_page_token": "a place in a list, bound to its owner",
    "next_token": "a place in a list, bound to its owner",
    "Options.credentials": "objects, each of which masks itself",
    "Login.token": "an object that masks itself",
    "Means.tokens": "an object that shows nothing",
    "SecuritySettings.auth_tokens": "the name of a file",
    "SecuritySettings.api_keys": "the name of a file",
    "PushSettings.tokens": "a switch",
    "Issuer._tokens": "of an issuer that plays a part",
    "Tokens.prompt_tokens": "a number of words",
    "Tokens.completion_tokens": "a number of words",
    "InternalEvent.input_tokens": "a number of words",
    "InternalEvent.output_tokens": "a number of words",
    "Registered.credential": "how one is shown, not which",
    "Registration.credential": "an object that masks itself",
    "AgentChanges.credential": "an object that masks itself",
    "NewAgent.credential": "an object that masks itself",
    "AgentChange.credential": "an object that masks itself",
    "Pass.credential": "an object that masks itself",
    "_StoredToken.credential": "an object that masks itself",
    "CommandSettings.client_cert": "the name of a file",
    "CommandSettings.client_key": "the name of a file",
    "HttpSettings.tls_key": "the name of a file",
    "SecuritySettings.jwt_keys": "the name of a file",
    "CardSettings.sign_key": "the name of a file",
    "SecuritySettings.api_key_header": "the name of a header",
    "SecuritySettings.auth": "ways for callers to prove who they are",
    "Registered.credential_header": "the name of a header",
    "Card.sign_key": "the name of a file",
    "ScriptStep.auth": "a switch",
    "PushConfig.authentication": "an object that masks itself",
    "Handoff.key": "a public key",
    "VerificationKey.key": "an object that shows nothing",
    "_Enrolled.key": "an object that shows nothing",
    "KeepReply.key": "what a repeated call is known by",
    "AddDay.key": "a requester, an agent and a day",
    "Rung.agent_keys": "how often keys have changed",
    "Draw.key": "a hash of whom a limit is for",
    "Table.key": "the names of columns",
    "Field.key": "the place of a field in a form",
    "ServerStatus.authentication": "ways for callers to prove who they are",
}
# Runs the command when it is imported.
NOT_OURS = {"dragoman.__main__"}


def classes() -> Iterator[type]:
    """Return every class of the package."""
    for found in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
        if found.name in NOT_OURS:
            continue
        module = importlib.import_module(found.name)
        for _, value in inspect.getmembers(module, inspect.isclass):
            if value.__module__ == found.name:
                yield value


def fields(kind: type) -> list[str]:
    """Return the fields that a class prints by itself."""
    if issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.repr]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(kind._fields)  # type: ignore[attr-defined]  # a named tuple
    return []


def made(kind: type, field: str) -> Any:
    """Return an object that has the secret in a field, and whatever it needs in the others."""
    hint = str(kind.__annotations__.get(field, ""))
    value: Any = SECRET
    if "dict" in hint or "Mapping" in hint:
        value = {"name": SECRET}
    elif "list" in hint or "Sequence" in hint:
        value = [SECRET]
    if issubclass(kind, msgspec.Struct):
        # Types that are only named cannot be asked for here.
        names, defaults = kind.__struct_fields__, kind.__struct_defaults__
        some = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        needed = [name for name in names if some.get(name, msgspec.NODEFAULT) is msgspec.NODEFAULT]
    else:
        parameters = inspect.signature(kind).parameters.values()
        needed = [one.name for one in parameters if one.default is one.empty]
    try:
        return kind(**dict.fromkeys(needed) | {field: value})
    except Exception:
        # One that checks what it is given, or makes this field itself.
        thing = kind(**dict.fromkeys(needed, "x"))
        if isinstance(thing, msgspec.Struct):
            msgspec.structs.force_setattr(thing, field, value)
        else:
            object.__setattr__(thing, field, value)
        return thing


def is_secret(kind: type, field: str) -> bool:
    is_named_so = is_secret_name(field) and not FLAGS.match(field)
    return is_named_so and not {field, f"{kind.__name__}.{field}"} & {*HARMLESS}


CASES = [
    pytest.param(kind, field, id=f"{kind.__module__}.{kind.__qualname__}.{field}")
    for kind in classes()
    for field in fields(kind)
    if is_secret(kind, field)
]


@pytest.mark.parametrize(("kind", "field"), CASES)
async def test_what_is_named_like_a_secret_is_not_printed(kind: type, field: str) -> None:
    # In a loop: some ask for the one that runs when they are made.
    thing = made(kind, field)
    assert SECRET not in repr(thing) and SECRET not in str(thing) and SECRET not in f"{thing!r}"


def test_the_search_finds_the_classes_there_are() -> None:
    found = {f"{case.values[0].__name__}.{case.values[1]}" for case in CASES}
    assert {"StoreSettings.sealing_keys", "PushSettings.secrets", "PushConfig.token"} <= found
    assert "PushAuthentication.credentials" in found
