"""What a scripted agent plays: its card, and rules that say what comes of a message.

A script is JSON, TOML or, with the extra `yaml`, YAML. A rule has conditions and steps; a step is
one thing the agent does, and the same word stands for the same deed in all three formats.
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
# The members of a step that say what is done; each step has exactly one of them.
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
# Those that answer a request by themselves, without a task.
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
    """Something in the file of a script: a name it does not know is a mistake."""


class When(Written, frozen=True, kw_only=True):
    """Conditions; all that are given must hold, and none given always holds."""

    # Of the message's text, without regard to case, but for the pattern's.
    equals: str = ""
    contains: str = ""
    regex: str = ""
    # The skill the message's or the request's metadata names.
    skill: str = ""
    # The operation, in the words of any version, or `card` for the fetch of the card.
    method: str = ""
    version: str = ""
    # Which of the requests that fulfil all else: 1 is the first.
    nth: int | list[int] = []

    def __post_init__(self) -> None:
        try:
            re.compile(self.regex)
        except re.error as error:
            raise ValueError(f"regex: {error}") from None

    @property
    def calls(self) -> list[int]:
        """Which calls it means; empty: all."""
        return [self.nth] if isinstance(self.nth, int) else self.nth


class Step(Written, frozen=True, kw_only=True):
    """One deed. Texts may have {text}, {first}, {task}, {context}, {i} and {1}, {2}… in them: what
    was said last and first, the ids, the turn of a repetition and the groups of the regex."""

    # A message instead of a task.
    message: str | None = None
    # Working, with a message.
    say: str | None = None
    # A state by any of its names, or a name that nobody knows.
    state: str | None = None
    # The id of an artifact, a chunk of which comes.
    artifact: str | None = None
    # Any JSON in place of an event.
    event: Json | msgspec.UnsetType = msgspec.UNSET
    wait: Duration | None = None
    # Input is required; the next message goes to the answers, or just goes on.
    ask: str | None = None
    # Authorization is required; a message or `after` that time goes on.
    auth: str | None = None
    # The name of an error (`TaskNotFound`) or a code of JSON-RPC.
    error: str | int | None = None
    # Bytes in place of an answer or of an event.
    raw: str | None = None
    # The connection breaks: here, or on each stream after so many events.
    cut: Literal[True] | int | str | None = None
    cut_at_byte: int | str | None = None
    # The connection breaks without an answer.
    drop: Literal[True] | None = None
    # The stream ends as if all were said.
    close: Literal[True] | None = None
    # Nothing more happens.
    hang: Literal[True] | None = None
    # The event before comes again.
    twice: Literal[True] | None = None
    # The next two events come in the wrong order.
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
    steps: "list[Step]" = []

    def __post_init__(self) -> None:
        given = [verb for verb in VERBS if _is_given(getattr(self, verb))]
        if len(given) != 1:
            said = " and ".join(given) or "none"
            raise ValueError(f"a step has exactly one of {', '.join(VERBS)}; this has {said}")

    @property
    def verb(self) -> str:
        """What is done."""
        return next(verb for verb in VERBS if _is_given(getattr(self, verb)))


class Rule(Written, frozen=True, kw_only=True):
    """What comes of a request that fulfils the conditions."""

    steps: list[Step] = []
    when: When = When()


class Offer(Written, frozen=True, kw_only=True):
    """One interface of the card. A URL is added to the agent's own unless it is absolute."""

    binding: str = JSONRPC
    version: str = "1.0"
    tenant: str = ""
    url: str = ""


class Access(Written, frozen=True, kw_only=True):
    """Who may call. The card declares the scheme, and calls without it are refused."""

    kind: AccessKind = "none"
    # A token, a key, or `user:password`; issuers make their own.
    secret: str = "demo-secret"
    # Of keys: the name of the header, of the parameter or of the cookie.
    name: str = ""
    # Whether even the card wants it.
    card: bool = False

    def __repr__(self) -> str:
        return f"Access(kind={self.kind!r}, secret='***', name={self.name!r}, card={self.card})"


class Card(Written, frozen=True, kw_only=True):
    """What the card says."""

    name: str = "Scripted agent"
    description: str = "Plays a script."
    version: str = "1.0.0"
    skills: list[AgentSkill] = msgspec.field(default_factory=lambda: [_PLAY])
    # Every version on every binding that has it, in this order; or each one by name.
    bindings: list[str] = msgspec.field(default_factory=lambda: [JSONRPC, HTTP_JSON])
    versions: list[str] = msgspec.field(default_factory=lambda: ["1.0", "0.3"])
    interfaces: list[Offer] = []
    tenant: str = ""
    streaming: bool | None = True
    push: bool | None = True
    # None: there is no extended card; otherwise the skills it has besides.
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
    # Members that are added, and what stands in place of everything.
    extra: dict[str, Json] = {}
    raw: Json | msgspec.UnsetType = msgspec.UNSET
    cache_control: str = "no-cache"

    def offers(self) -> list[Offer]:
        """Return the interfaces in the order of the card."""
        if self.interfaces:
            return self.interfaces
        return [
            Offer(binding=binding, version=version, tenant=self.tenant if version >= "1" else "")
            for version in self.versions
            for binding in self.bindings
        ]


class Existing(Written, frozen=True, kw_only=True):
    """Tasks that are there from the start."""

    count: int = 1
    state: str = "completed"
    text: str = "Task {i}"
    context: str = ""


class Script(Written, frozen=True, kw_only=True):
    """Everything about a scripted agent. Of several rules the first that fits counts; where none
    does, the agent says what it was told."""

    card: Card = Card()
    rules: list[Rule] = []
    tasks: list[Existing] = []
    access: Access = Access()
    latency: Duration = 0.0
    # The share of calls that fail, and where chance begins.
    fail_rate: float = 0.0
    seed: int = 0
    # Whether streams carry ids and go on from one.
    cursors: bool = False
    # Whether a message that comes again gets the task it made.
    dedupe: bool = False
    # JSON at paths of its own, such as a catalog; `{base}` in it is the agent's address.
    documents: dict[str, Json] = {}


ECHO = Rule(
    steps=[
        Step(state="working"),
        Step(artifact="answer", text="{text}", last=True),
        Step(state="completed"),
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
    """Return the script a plain value describes; raises ConfigError that names the place."""
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
        # Without its source on machines that have not the extra.
        import yaml  # pyright: ignore[reportMissingModuleSource]
    except ImportError:
        raise ConfigError(
            "YAML needs the extra yaml: pip install 'dragoman[yaml]'; or write JSON or TOML"
        ) from None
    try:
        # PyYAML has no types of its own.
        return yaml.safe_load(text)  # pyright: ignore
    except yaml.YAMLError as error:  # pyright: ignore
        raise ConfigError(str(error).replace("\n", " ")) from None


def _check(rules: Iterable[Rule]) -> None:
    """Look at what types do not tell, so that a mistake shows at the start and not in play."""
    for rule in rules:
        for step in rule.steps:
            for duration in (step.wait, step.after):
                if duration is not None and not (isinstance(duration, str) and "{" in duration):
                    seconds(duration)
            _check(step.answers)
            _check([Rule(steps=step.steps)])
