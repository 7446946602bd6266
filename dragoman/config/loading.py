"""Reads settings from the environment: `store` is read from `DRAGOMAN_STORE`.

In the environment and on the command line settings have flat names, and a list is a text with
commas. A value given on the command line wins.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from dragoman.config.formats import did_you_mean
from dragoman.config.group import ADDRESSES, SECRETS, allowed, fields_of, refusal, variable_name
from dragoman.config.settings import Settings
from dragoman.errors import ConfigError
from dragoman.model.duration import duration
from dragoman.model.patterns import late_pattern

PREFIX = "DRAGOMAN_"
# Variables of ours that are not settings: of single commands, of workers, of tests.
OTHERS = frozenset(
    """
    AGENT CONCURRENCY DATA_DIR DURATION LIMIT LIMIT_P99 MESSAGE NAME PAYLOAD RATE SCENARIO SKILL
    STATUS STRICT TCK TEMPLATE WARMUP
    ADMIN_TOKEN GATEWAY MCP_TOKEN
    CATALOG INHERITED PEERS_DIR WORKER_METRICS
    """.split()  # noqa: SIM905 - twenty quoted words are harder to read
)
# What may be in a file that `DRAGOMAN_<NAME>_FILE` names.
IN_FILES = SECRETS | ADDRESSES
# What Kubernetes tells every container about a service that is called dragoman, or dragoman-x.
_SERVICE = late_pattern(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
# What people write for a switch, besides true and false.
_SWITCHES = {"on": "true", "yes": "true", "off": "false", "no": "false"}


SettingSource = Literal["default", "environment", "file", "given"]


class SettingField(msgspec.Struct, frozen=True):
    """One setting: where it is, and what it may be."""

    group: str
    field: str
    type: Any
    meta: Meta
    default: Any


def _setting_fields() -> dict[str, SettingField]:
    found: dict[str, SettingField] = {}
    for group in fields_of(Settings):
        defaults = group.type()
        for field in fields_of(group.type):
            kind, meta = get_args(field.type)
            default = getattr(defaults, field.name)
            found[variable_name(field)] = SettingField(group.name, field.name, kind, meta, default)
    return found


# Every setting by its flat name, in the order of the groups.
FIELDS = _setting_fields()


def value_of(settings: Settings, name: str) -> Any:
    """Return the value of a setting by its flat name."""
    field = FIELDS[name]
    return getattr(getattr(settings, field.group), field.field)


def source_of(settings: Settings, name: str, environment: Mapping[str, str]) -> SettingSource:
    """Return where the value of a setting comes from. What was given may equal what the environment
    says, and is then taken for that."""
    value, field = value_of(settings, name), FIELDS[name]
    variable = PREFIX + name.upper()
    if variable in environment and _from_text(name, field, environment[variable]) == value:
        return "environment"
    if value == field.default:
        return "default"
    return "file" if name in IN_FILES and environment.get(f"{variable}_FILE") else "given"


def check_names(environment: Mapping[str, str]) -> None:
    """Refuse a variable that looks like a setting and is none: its author relies on it."""
    settings = {name.upper() for name in (*FIELDS, *(f"{name}_file" for name in IN_FILES))}
    for name in sorted(environment):
        word = name.removeprefix(PREFIX)
        if word != name and word not in settings | OTHERS and not _SERVICE.fullmatch(word):
            near = did_you_mean(word, settings, PREFIX)
            raise ConfigError(
                f"{name} is not a setting{near}; unset it, or correct it", remedy=f"unset {name}"
            )


def load_settings(environment: Mapping[str, str], **given: Any) -> Settings:
    """Return the settings: what was given, else the environment, else the defaults."""
    values: dict[str, Any] = {
        name: environment[PREFIX + name.upper()]
        for name in FIELDS
        if PREFIX + name.upper() in environment
    }
    for name, path in _secret_files(environment):
        if values.get(name):
            raise refusal(name, values[name], "given itself and as a file; unset one of them")
        values[name] = _secret(name, path)
        if name in ADDRESSES and "://" not in values[name]:
            raise ConfigError(
                f"{PREFIX}{name.upper()}_FILE: {path} has no address of a database; "
                f"the path of a SQLite file is for {PREFIX}STORE"
            )
    values |= {name: value for name, value in given.items() if value is not None}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in FIELDS:
            raise ConfigError(f"{name} is not a setting{did_you_mean(name, FIELDS)}")
        field = FIELDS[name]
        if isinstance(value, str):
            value = _from_text(name, field, value)
        groups.setdefault(field.group, {})[field.field] = value
    types = {group.name: group.type for group in fields_of(Settings)}
    return Settings(**{group: types[group](**found) for group, found in groups.items()})


def open_files(environment: Mapping[str, str]) -> list[str]:
    """Return the files of secrets and addresses that every user of the machine can read. A group
    may be meant: platforms give a container its secrets by one."""
    if os.name != "posix":
        return []
    found: list[str] = []
    for _, path in _secret_files(environment):
        with contextlib.suppress(OSError):
            if Path(path).expanduser().stat().st_mode & stat.S_IROTH:
                found.append(path)
    return found


def _secret_files(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the settings that are in files, each with its file. A file that is a setting of its own
    is read where it is used, and again when it changes."""
    own_files = {name.removesuffix("_file") for name in FIELDS if name.endswith("_file")}
    for name in sorted(IN_FILES - own_files):
        if path := environment.get(f"{PREFIX}{name.upper()}_FILE"):
            yield name, path


def _from_text(name: str, field: SettingField, text: str) -> Any:
    """Return the value that a text stands for; the group says whether it is allowed."""
    if get_origin(field.type) is list:
        return text.split(",")
    try:
        if field.type is float:
            return duration(text)
        word = _SWITCHES.get(text.lower(), text) if field.type is bool else text
        return msgspec.convert(word, field.type, strict=False)
    except ValueError:
        raise refusal(name, text, allowed(field.type, field.meta)) from None


def _secret(name: str, path: str) -> str:
    """Return the secret in a file, without the newline that editors add."""
    variable = f"{PREFIX}{name.upper()}_FILE"
    try:
        text = Path(path).expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{variable}: {path} cannot be read ({reason})") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ConfigError(f"{variable}: {path} is empty; write the secret into it")
    return text
