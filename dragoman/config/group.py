"""What all groups of settings have in common: a group that exists is valid.

Each value is cleaned and checked when a group is made, whether in code, from the environment or
from the command line. What is refused is a `ConfigError` of one form: the name of the setting, what
was given and what is allowed.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, cast, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo, fields, force_setattr

from dragoman.errors import ConfigError
from dragoman.model.patterns import late_pattern
from dragoman.model.push import hidden

# Never shown, and read from the file that `DRAGOMAN_<NAME>_FILE` names if not given themselves.
SECRETS = frozenset(
    {
        *("push_secret", "auth_token", "jwt_secret", "store_key", "payment_secret"),
        "oidc_client_secret",
    }
)
# Addresses that may have a password in them: shown without it, and read from files too.
ADDRESSES = frozenset({"store", "store_session_url", "bus"})
# To the last sign of it: a password may have any character, also where it should be written as %40.
_USER = late_pattern(r"(?<=://).*@")
_SECRET_PART = late_pattern(r"(?i)\b(password|sslpassword|token)=[^&#\s]*")

_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number of seconds",
    str: "a text",
}


def about(
    text: str, name: str = "", check: Callable[[Any], object] | None = None, **limits: Any
) -> Meta:
    """Return the description of a setting.

    `name` is that of its variable, where they differ. `check` reads a value of the right type and
    raises `ValueError`, which says what is allowed.
    """
    return Meta(description=text, extra={"name": name, "check": check}, **limits)


def variable_name(field: FieldInfo) -> str:
    """Return the name of a setting in the environment and on the command line, in lower case."""
    meta: Meta = field.type.__metadata__[0]
    return (meta.extra or {}).get("name") or field.name


def refusal(name: str, given: object, reason: str, *, remedy: str = "") -> ConfigError:
    """Return the error of a setting that is not allowed."""
    text = f"{name} = {shown(name, given)}: {reason}"
    return ConfigError(text, remedy=remedy, setting=name)


def shown(name: str, value: object) -> str:
    """Return a value as it may be shown."""
    if name in ADDRESSES:
        return repr(without_password(str(value)))
    if name not in SECRETS:
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(hidden(str(one)) for one in cast('list[object]', value))}]"
    return hidden(value if isinstance(value, str) else str(value))


def without_password(address: str) -> str:
    """Return an address as it may be shown: neither its user nor a password."""
    return _SECRET_PART.sub(r"\1=***", _USER.sub("", address))


def allowed(kind: Any, meta: Meta) -> str:
    """Return what a setting may be, by its type and bounds."""
    if get_origin(kind) is Literal:
        return f"must be one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is list:
        return "must be a list of texts"
    bounds = ""
    if meta.ge is not None:
        bounds = (
            f", from {meta.ge} to {meta.le}" if meta.le is not None else f", at least {meta.ge}"
        )
    elif meta.gt is not None:
        bounds = f", above {meta.gt}"
    return f"must be {_KINDS[kind]}{bounds}"


class SettingsGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Some settings of one room; raises `ConfigError` for a value that is not allowed."""

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            given = getattr(self, field.name)
            if given is not field.default:
                force_setattr(self, field.name, _checked(field, given))

    def __repr__(self) -> str:
        words = [
            f"{field.name}={shown(variable_name(field), getattr(self, field.name))}"
            for field in fields_of(type(self))
        ]
        return f"{type(self).__name__}({', '.join(words)})"


@functools.cache
def fields_of(group: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a group: msgspec reads its annotations anew each time."""
    return fields(group)


def _checked(field: FieldInfo, given: Any) -> Any:
    """Return a value as its group has it."""
    name = variable_name(field)
    kind: Any
    meta: Meta
    kind, meta = get_args(field.type)
    try:
        value = msgspec.convert(given, field.type)
    except msgspec.ValidationError:
        raise refusal(name, given, allowed(kind, meta)) from None
    if isinstance(value, list):
        entries = cast("list[str]", value)
        value = [word for entry in entries if (word := entry.strip())]
    if isinstance(value, float) and not math.isfinite(value):
        raise refusal(name, given, allowed(kind, meta))
    if check := (meta.extra or {}).get("check"):
        try:
            check(value)
        except ValueError as error:
            raise refusal(name, given, str(error)) from None
    return value
