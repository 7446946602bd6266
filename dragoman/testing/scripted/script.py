"""The script of an agent: its card, and rules for messages.

A script is JSON, TOML or, with the extra `yaml`, YAML. A rule has conditions and steps; a step is
one action, with the same name in all three formats.
"""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from dragoman.errors import ConfigError
from dragoman.model.card import HTTP_JSON, JSONRPC, AgentExtension, AgentSkill
from dragoman.model.message import Json, Metadata, Part

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
# The actions; each step has exactly one of them.
VERBS = (
    "message",
    "say",
    "state",
    "artifact",
    "event",
    "wait",
    "ask",
    "auth",
    "error",
    "raw",
    "cut",
    "cut_at_byte",
    "drop",
    "close",
    "hang",
    "twice",
    "swap",
    "repeat",
)
# Actions that answer a request without a task.
DIRECT = frozenset({"message", "error", "raw", "drop"})

AccessKind = Literal[
    "none",
    "bearer",
    "api-key",
    "api-key-query",
    "api-key-cookie",
    "basic",
    "oauth2",
    "oidc",
    "mtls",
]
Duration = float | str
_PLAY = AgentSkill(id="play", name="Play", description="Plays a script.", tags=["test"])


def _is_given(value: Any) -> bool:
    return value is not None and value is not msgspec.UNSET


class Written(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename="camel",
):
    """Base of all parts of a script: unknown names are errors."""


class When(Written, frozen=True, kw_only=True):
    """Conditions; all that are given must hold, and none given always holds."""

    # Of the message's text, ignoring case except in the pattern.
    equals: str = ""
    contains: str = ""
    regex: str = ""
    # The skill in the metadata of the message or the request.
    skill: str = ""
    # The operation, named as in any version, or `card` for the card.
    method: str = ""
    version: str = ""
    # Which of the requests that fulfil all other conditions: 1 is the first.
    nth: int | list[int] = []

    def __post_init__(self) -> None:
        try:
            re.compile(self.regex)
        except re.error as error:
            raise ValueError(f"regex: {error}") from None

    @property
    def calls(self) -> list[int]:
        """The numbers of the calls; empty: all."""
        return [self.nth] if isinstance(self.nth, int) else self.nth


class ScriptStep(Written, frozen=True, kw_only=True):
    """One action. Texts may contain {text}, {first}, {task}, {context}, {i} and {1}, {2}…: the last
    and first message, the ids, the number of a repetition and the groups of the regex."""

    # A message instead of a task.
    message: str | None = None
    # Working, with a message.
    say: str | None = None
    # A state by any of its names, or an unknown name.
    state: str | None = None
    # A chunk of the artifact with this id.
    artifact: str | None = None
    # Any JSON in place of an event.
    event: Json | msgspec.UnsetType = msgspec.UNSET
    wait: Duration | None = None
    # Input is required; the next message is matched with `answers`, then the steps go on.
    ask: str | None = None
    # Authorization is required until a message comes or the time `after` has passed.
    auth: str | None = None
    # The name of an error (`TaskNotFound`) or a code of JSON-RPC.
    error: str | int | None = None
    # Bytes in place of an answer or of an event.
    raw: str | None = None
    # The connection is cut: here, or on each stream after so many events.
    cut: Literal[True] | int | str | None = None
    cut_at_byte: int | str | None = None
    # The connection breaks without an answer.
    drop: Literal[True] | None = None
    # The stream ends as if the task were over.
    close: Literal[True] | None = None
    # Nothing more happens.
    hang: Literal[True] | None = None
    # The previous event is sent again.
    twice: Literal[True] | None = None
    # The next two events are sent in the wrong order.
    swap: Literal[True] | None = None
    # The steps, so many times.
    repeat: int | str | None = None

    # Content of a message, a status or an artifact.
    text: str | None = None
    data: Json | msgspec.UnsetType = msgspec.UNSET
    parts: list[Part] = []
    metadata: Metadata = {}
    # Of artifacts.
    name: str = ""
    description: str = ""
    append: bool = False
    last: bool = False
    # Of errors and raw answers.
    http: int = 0
    type: str = ""
    retry_after: str = ""
    challenge: str = ""
    headers: dict[str, str] = {}
    # Of cuts: how many connections break.
    times: int | str = 1
    # Of `auth`.
    after: Duration | None = None
    answers: "list[Rule]" = []
    # Of `repeat`.
    steps: "list[ScriptStep]" = []

    def __post_init__(self) -> None:
        given = [verb for verb in VERBS if _is_given(getattr(self, verb))]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"a step has exactly one of {', '.join(VERBS)}; this has {found}")

    @property
    def verb(self) -> str:
        """The action."""
        return next(verb for verb in VERBS if _is_given(getattr(self, verb)))


class Rule(Written, frozen=True, kw_only=True):
    """The steps for a request that fulfils the conditions."""

    steps: list[ScriptStep] = []
    when: When = When()


class ScriptedInterface(Written, frozen=True, kw_only=True):
    """One interface of the card. A URL is added to the agent's own unless it is absolute."""

    binding: str = JSONRPC
    version: str = "1.0"
    tenant: str = ""
    url: str = ""


class ScriptedAccess(Written, frozen=True, kw_only=True):
    """The authentication. The card declares the scheme, and calls without it are refused."""

    kind: AccessKind = "none"
    # A token, a key, or `user:password`; issuers make their own.
    secret: str = "demo-secret"
    # Of keys: the name of the header, of the parameter or of the cookie.
    name: str = ""
    # Whether the card requires it too.
    card: bool = False

    def __repr__(self) -> str:
        return f"Access(kind={self.kind!r}, secret='***', name={self.name!r}, card={self.card})"


class Card(Written, frozen=True, kw_only=True):
    """The content of the card."""

    name: str = "Scripted agent"
    description: str = "Plays a script."
    version: str = "1.0.0"
    skills: list[AgentSkill] = msgspec.field(default_factory=lambda: [_PLAY])
    # Every version on every binding that has it, in this order; or each one by name.
    bindings: list[str] = msgspec.field(default_factory=lambda: [JSONRPC, HTTP_JSON])
    versions: list[str] = msgspec.field(default_factory=lambda: ["1.0", "0.3"])
    interfaces: list[ScriptedInterface] = []
    tenant: str = ""
    streaming: bool | None = True
    push: bool | None = True
    # None: there is no extended card; otherwise its additional skills.
    extended: list[AgentSkill] | None = None
    extensions: list[AgentExtension] = []
    input_modes: list[str] = msgspec.field(default_factory=lambda: ["text/plain"])
    output_modes: list[str] = msgspec.field(default_factory=lambda: ["text/plain"])
    security_schemes: dict[str, Json] = {}
    security_requirements: list[Json] = []
    # A private key in PEM or a JWK, or the path of one.
    sign_key: str = ""
    # Whether a signed card is changed after it was signed.
    forged: bool = False
    # Members to add, and a replacement of the whole card.
    extra: dict[str, Json] = {}
    raw: Json | msgspec.UnsetType = msgspec.UNSET
    cache_control: str = "no-cache"

    def offers(self) -> list[ScriptedInterface]:
        """Return the interfaces in the order of the card."""
        if self.interfaces:
            return self.interfaces
        return [
            ScriptedInterface(
                binding=binding, version=version, tenant=self.tenant if version >= "1" else ""
            )
            for version in self.versions
            for binding in self.bindings
        ]


class Existing(Written, frozen=True, kw_only=True):
    """Tasks that exist from the start."""

    count: int = 1
    state: str = "completed"
    text: str = "Task {i}"
    context: str = ""


class Script(Written, frozen=True, kw_only=True):
    """A whole script. The first rule that fits is used; if none does, the agent echoes the text."""

    card: Card = Card()
    rules: list[Rule] = []
    tasks: list[Existing] = []
    access: ScriptedAccess = ScriptedAccess()
    latency: Duration = 0.0
    # The share of calls that fail, and the seed of their choice.
    fail_rate: float = 0.0
    seed: int = 0
    # Whether streams carry ids and go on from one.
    cursors: bool = False
    # Whether a repeated message gets the task of the first one.
    dedupe: bool = False
    # JSON documents by path, such as a catalog; `{base}` in them is the agent's address.
    documents: dict[str, Json] = {}


ECHO = Rule(
    steps=[
        ScriptStep(state="working"),
        ScriptStep(artifact="answer", text="{text}", last=True),
        ScriptStep(state="completed"),
    ]
)
_FORMATS = {".json", ".toml", ".yaml", ".yml"}


def seconds(value: Duration) -> float:
    """Return a duration in seconds: a number, or text such as `500ms`, `2s`, `1m`."""
    if isinstance(value, int | float):
        return float(value)
    found = _DURATION.match(value.strip())
    if found is None:
        raise ConfigError(f"{value!r} is no duration; write 500ms, 2s or 1m")
    return float(found[1]) * _SECONDS[found[2]]


def build(value: Any) -> Script:
    """Return the script of a plain value; raises `ConfigError` that names the position."""
    try:
        script = msgspec.convert(value, Script)
        _check(rule for rule in script.rules)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"the script makes no sense: {error}") from None
    return script


def read(path: Path) -> Script:
    """Return the script in a file, in the format its name ends with."""
    if path.suffix not in _FORMATS:
        raise ConfigError(f"{path.name}: a script ends with .json, .toml or .yaml")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    try:
        return build(_parse(path, text))
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None


def _parse(path: Path, text: bytes) -> Any:
    try:
        if path.suffix == ".json":
            return msgspec.json.decode(text)
        if path.suffix == ".toml":
            return tomllib.loads(text.decode())
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(error)) from None
    try:
        # Not installed without the extra.
        import yaml  # pyright: ignore[reportMissingModuleSource]
    except ImportError:
        raise ConfigError(
            "YAML needs the extra yaml: pip install 'dragoman[yaml]'; or write JSON or TOML",
            remedy="pip install 'dragoman[yaml]'",
        ) from None
    try:
        # PyYAML has no types of its own.
        return yaml.safe_load(text)  # pyright: ignore
    except yaml.YAMLError as error:  # pyright: ignore
        raise ConfigError(str(error).replace("\n", " ")) from None


def _check(rules: Iterable[Rule]) -> None:
    """Check what types cannot express, so that a mistake shows at the start."""
    for rule in rules:
        for step in rule.steps:
            for duration in (step.wait, step.after):
                if duration is not None and not (isinstance(duration, str) and "{" in duration):
                    seconds(duration)
            _check(step.answers)
            _check([Rule(steps=step.steps)])
