"""Where options come from: flag, environment, local file, file of the agent, global file, default.

Files hold one `A2ACLI_KEY=value` per line and are only read. Nothing that names a task or a context
is ever written by us, so two commands know of each other only what their caller says.
"""

import os
import shlex
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from dragoman.cli.failures import CARD_NOT_FOUND, Failure, usage
from dragoman.cli.options import BY_NAME, PREFIX, ROWS, OptionRow
from dragoman.security.secret_names import is_secret

Kind = Literal["flag", "env", "file", "default"]
# The folder is the specification's, so that every conforming tool shares it.
_FOLDER = "a2a-cli"
_OURS = "DRAGOMAN_"
# Where a name such as `@weather` is looked up.
CATALOG = "DRAGOMAN_CATALOG"
_MOST = 1_000_000
# Lines of a file that a warning names.
_TOLD = 5


class Origin(NamedTuple):
    """Where a value comes from; lower ranks win."""

    kind: Kind
    rank: int
    path: str = ""


DEFAULT = Origin("default", 9)


class FoundSetting(NamedTuple):
    """A value, read, and where it was."""

    value: Any
    origin: Origin


class SettingsFile(NamedTuple):
    """A configuration file and what it says."""

    path: Path
    rank: int
    values: Mapping[str, str]


class CommandSettings:
    """The global options as they hold for this run; the fields are the rows of the table. Not a
    dataclass: to make one takes longer than to load its module, and every command does."""

    agent_card: str = ""
    output: Literal["text", "json", "table"] = "text"
    stream: bool = False
    wait: bool = False
    at_once: bool = False
    poll_interval: float = 2.0
    timeout: float = 0.0
    context_id: str = ""
    task_id: str = ""
    a2a_version: str = ""
    strict_version: bool = False
    bearer: str = ""
    api_key: str = ""
    insecure: bool = False
    config: str = ""
    verbose: bool = False
    debug: bool = False
    client_cert: str = ""
    client_key: str = ""
    ca_cert: str = ""
    # The local file if it was not named but found, here or in a folder above.
    found_file: str = ""

    def __init__(self, **given: Any) -> None:
        """`given` are fields that are not as the table has them."""
        self.transport: list[str] = []
        self.svc_param: list[tuple[str, str]] = []
        self.metadata: dict[str, Any] = {}
        self.extension: list[str] = []
        self.trust_origin: list[str] = []
        # Where each comes from, by the name of its row.
        self.origins: dict[str, Origin] = {}
        # The environment, and below it what files say: for what single commands read there.
        self.environment: Mapping[str, str] = {}
        # Where those come from that a file says.
        self.from_files: Mapping[str, Origin] = {}
        # What the caller should hear about the files.
        self.warnings: list[str] = []
        # What kept a value from being read; only help goes on with it.
        self.problems: list[str] = []
        for name, value in given.items():
            if not hasattr(self, name):
                raise TypeError(f"there is no field {name}")
            setattr(self, name, value)

    @property
    def is_json(self) -> bool:
        """Tell whether a program reads stdout."""
        return self.output == "json"

    @property
    def is_table(self) -> bool:
        """Tell whether lists are tables, given that stdout is or is not a terminal: a person who
        chose nothing gets one."""
        from dragoman.cli.terminal.table import is_terminal_out

        return self.output == "table" or (not self.is_set("output") and is_terminal_out())

    def is_given(self, name: str) -> bool:
        """Tell whether an option was written on the command line."""
        return self.origins.get(name, DEFAULT).kind == "flag"

    def is_set(self, name: str) -> bool:
        """Tell whether an option is anywhere but in the table."""
        return self.origins.get(name, DEFAULT).kind != "default"

    @property
    def waits(self) -> bool:
        """Tell whether to wait, unless something of a higher rank asks to return at once."""
        wait, at_once = (self.origins.get(name, DEFAULT) for name in ("wait", "async"))
        if self.at_once and (not self.is_set("wait") or at_once.rank <= wait.rank):
            return False
        return self.wait

    @property
    def explicit_interval(self) -> float | None:
        """Return the time between polls if one was chosen."""
        return self.poll_interval if self.is_set("poll-interval") else None


def settle(
    given: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    folder: Path,
    *,
    defaults: Mapping[str, str] | None = None,
    tolerant: bool = False,
    names: Collection[str] = tuple(BY_NAME),
) -> CommandSettings:
    """Return the settings of a run: flags as they were written, then every other source.

    A value that makes no sense is a usage error that names its place; `tolerant` notes it instead
    and goes on with the next source, which is what help needs. Only the options of these `names`
    are looked for: what has no effect does no harm either.
    """
    settings = CommandSettings()
    reader = _Reader(given, environment, folder, settings, tolerant)
    files = list(reader.files())
    settings.environment = _merged(files) | dict(environment)
    settings.warnings += _open_secrets(settings.environment)
    settings.from_files = {
        name: Origin("file", file.rank, str(file.path))
        for file in reversed(files)
        for name in file.values
    }
    for row in ROWS:
        if row.name not in names:
            continue
        found = reader.value(row, files, (defaults or {}).get(row.name, row.default))
        if found is not None:
            setattr(settings, row.field, found.value)
            settings.origins[row.name] = found.origin
    return settings


def _open_secrets(environment: Mapping[str, str]) -> list[str]:
    """Return what to say of files of a server's secrets that others can read."""
    if not any(name.startswith("DRAGOMAN_") and name.endswith("_FILE") for name in environment):
        return []
    # Heavy, and rarely needed.
    from dragoman.config import open_files

    return [
        f"{path} holds a secret and others can read it: chmod 600 {path}"
        for path in open_files(environment)
    ]


class _Reader:
    def __init__(
        self,
        given: Mapping[str, Sequence[str]],
        environment: Mapping[str, str],
        folder: Path,
        settings: CommandSettings,
        tolerant: bool,
    ) -> None:
        self._given_options = given
        self._environment = environment
        self._folder = folder
        self._settings = settings
        self._tolerant = tolerant

    def refuse(self, failure: Failure) -> None:
        """Raise what is wrong, or note it."""
        if not self._tolerant:
            raise failure
        self._settings.problems.append(failure.message)

    def files(self) -> Iterator[SettingsFile]:
        """Read the files there are, the local one first."""
        found = [file for file in (self._local(), self._global()) if file]
        if host := host_of(self._reference(found)):
            path = config_folder(self._environment) / "agents" / f"{host}.env"
            found += filter(None, [self._read(path, 4, is_ours=True)])
        yield from sorted(found, key=lambda file: file.rank)

    def _local(self) -> SettingsFile | None:
        row = BY_NAME["config"]
        name = self._given_options.get("config", [""])[-1] or self._environment.get(
            row.variable, ""
        )
        if name:
            path = self._folder / Path(name).expanduser()
            if reason := _refusal(path):
                self.refuse(usage(f"{name}: {reason}"))
                return None
            return self._read(path, 3, is_ours=True)
        path = nearest(self._folder)
        file = self._read(path, 3) if path else None
        self._settings.found_file = str(file.path) if file else ""
        return file

    def _global(self) -> SettingsFile | None:
        return self._read(config_folder(self._environment) / ".env", 5, is_ours=True)

    def _reference(self, files: Sequence[SettingsFile]) -> str:
        row = BY_NAME["agent-card"]
        layers = [self._environment, *(file.values for file in files)]
        texts = [self._given_options.get(row.name, [""])[-1]]
        texts += [layer.get(row.variable, "") for layer in layers]
        return next(filter(None, texts), "")

    def _read(self, path: Path, rank: int, *, is_ours: bool = False) -> SettingsFile | None:
        """Read a file; `is_ours`: it holds nothing but our own settings."""
        try:
            if not path.is_file():
                return None
            about = path.stat()
            if hasattr(os, "geteuid") and about.st_uid != os.geteuid():
                self._settings.warnings.append(f"{path} belongs to another user and is not read")
                return None
            with path.open("rb") as stream:
                text = stream.read(_MOST).decode("utf-8-sig")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
            self.refuse(usage(f"{path}: {reason}"))
            return None
        values = parse(text)
        if numbers := _unassigned(text, is_ours):
            # Without what it says: it may be a secret.
            self._settings.warnings.append(
                f"{path}: line {', '.join(map(str, numbers))} is no NAME=value and is not read"
            )
        is_open = os.name == "posix" and about.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        if is_open and any(value and _is_secret(name) for name, value in values.items()):
            self._settings.warnings.append(
                f"{path} holds a secret and others can read it: chmod 600 {path}"
            )
        return SettingsFile(path, rank, values)

    def value(
        self, row: OptionRow, files: Sequence[SettingsFile], default: str | None
    ) -> FoundSetting | None:
        """Return the value of the highest rank."""
        if texts := self._given_options.get(row.name):
            found = self._convert(row, texts, Origin("flag", 1), row.flag)
            if found is not None:
                return found
        layers: list[tuple[Origin, Mapping[str, str], str]] = []
        if row.in_environment:
            layers.append((Origin("env", 2), self._environment, row.variable))
        if row.in_files:
            layers += [
                (
                    Origin("file", file.rank, str(file.path)),
                    file.values,
                    f"{file.path}: {row.variable}",
                )
                for file in files
            ]
        for origin, values, place in layers:
            # An empty variable is one that is not there.
            if text := values.get(row.variable, ""):
                texts = row.apart(text) if row.apart else [text]
                found = self._convert(row, texts, origin, place)
                if found is not None:
                    return found
        return None if default is None else FoundSetting(row.read(default), DEFAULT)

    def _convert(
        self, row: OptionRow, texts: Sequence[str], origin: Origin, place: str
    ) -> FoundSetting | None:
        read: Callable[[str], Any] = row.read
        try:
            value: Any = [read(text) for text in texts] if row.apart else read(texts[-1])
        except ValueError as error:
            is_typed = origin.kind == "flag" and row.example
            remedy = f"{row.flag} {row.example}" if is_typed else ""
            self.refuse(usage(f"{place} {error}", remedy=remedy))
            return None
        return FoundSetting(value, origin)


def parse(text: str) -> dict[str, str]:
    """Return the values of a file; lines that are not ours may say what they want."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if equals and name.startswith((PREFIX, _OURS)):
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            values[name] = value
    return values


def _is_secret(name: str) -> bool:
    return is_secret(name) or any(row.is_secret and row.variable == name for row in ROWS)


def _unassigned(text: str, is_ours: bool) -> list[int]:
    """Return the numbers of lines that were meant for us and assign nothing."""
    found: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        assignment = line.strip().removeprefix("export ").strip()
        is_meant = is_ours or assignment.startswith((PREFIX, _OURS))
        if assignment and is_meant and assignment[0] != "#" and "=" not in assignment:
            found.append(number)
    return found[:_TOLD]


def _refusal(path: Path) -> str:
    """Return why something is no configuration file; empty: it is one, or nothing at all."""
    try:
        about = path.stat()
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        reason = getattr(error, "strerror", None) or "cannot be read"
        return "there is no such configuration file" if is_missing else reason
    if stat.S_ISDIR(about.st_mode):
        return "is a folder, and no configuration file"
    if stat.S_ISREG(about.st_mode) or path.samefile(os.devnull):
        return ""
    return "is no regular file, and nothing else can be read twice"


def catalog_of(settings: CommandSettings) -> str:
    """Return where names are looked up; raises a failure if the agent is a name without it."""
    found = settings.environment.get(CATALOG, "")
    if not found and settings.agent_card.startswith("@"):
        raise Failure(
            CARD_NOT_FOUND,
            f"{settings.agent_card} is a name in a catalog, and {CATALOG} names none",
            hint=f"{CATALOG}='<url>' dragoman card get -a {shlex.quote(settings.agent_card)}",
        )
    return found


def nearest(folder: Path) -> Path | None:
    """Return the `.env` of a folder or of the nearest one above it."""
    for place in (folder, *folder.parents):
        if (path := place / ".env").is_file():
            return path
    return None


def config_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the global file."""
    base = environment.get("XDG_CONFIG_HOME", "")
    return (Path(base) if Path(base).is_absolute() else _home(environment) / ".config") / _FOLDER


def tokens_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of what logins leave."""
    return config_folder(environment).with_name("dragoman") / "tokens"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of what may be lost at any time."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else _home(environment) / ".cache") / "dragoman"


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment["HOME"]) if environment.get("HOME") else Path.home()


def host_of(reference: str) -> str:
    """Return the host a card reference names; empty: it names none, such as a file."""
    if not reference or reference.startswith(("/", "./", "../", "~", "@", "file:")):
        return ""
    try:
        parts = urlsplit(reference if "://" in reference else f"//{reference}")
        return (parts.hostname or "").lower()
    except ValueError:
        return ""


def _merged(files: Sequence[SettingsFile]) -> dict[str, str]:
    values: dict[str, str] = {}
    for file in reversed(files):
        values |= file.values
    return values
