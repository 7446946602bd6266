"""The built-in script: an agent that shows every behaviour of agents on request.

The first word of a message selects the behaviour; scenarios change the card and the initial tasks.
`dragoman demo-server --help` shows both tables.
"""

from collections.abc import Callable, Sequence

import msgspec

from dragoman.errors import ConfigError
from dragoman.model.card import HTTP_JSON, JSONRPC, AgentExtension, AgentSkill
from dragoman.model.message import Part
from dragoman.testing.scripted.agent import ScriptedAgent
from dragoman.testing.scripted.script import (
    ECHO,
    AccessKind,
    Card,
    Existing,
    Rule,
    Script,
    ScriptedAccess,
    ScriptStep,
    When,
    build,
)

# A catalog that lists the demo agent as `demo`.
CATALOG = "/catalog.json"
REQUIRED_EXTENSION = "urn:dragoman:demo:required:v1"

# Messages, and their effect.
WORDS: tuple[tuple[str, str], ...] = (
    ("echo <text>", "the text as an artifact; so does any other text"),
    ("slow <n>", "progress for n seconds, then an artifact"),
    ("stream <n>", "an artifact in n chunks"),
    ("parts", "an artifact with text, data, bytes and a URL"),
    ("message <text>", "a message and no task"),
    ("ask", "a question; the answer completes the task, `no` rejects it"),
    ("auth", "authorization is required until you reply"),
    ("auth <n>", "the same, but it is granted elsewhere after n seconds"),
    ("fail, reject, cancel", "the task ends in this state, with a sentence"),
    ("submitted, working, hang", "the task stays in this state; cancel it"),
    ("unspecified <n>", "the unspecified state, for n seconds"),
    ("future <n>", "a state that no version knows, for n seconds"),
    ("cut <n> <k>", "the stream breaks after n events, k times; the task goes on"),
    ("byte <n>", "the stream breaks at byte n"),
    ("close", "the stream ends although the task goes on"),
    ("drop", "the connection breaks without an answer"),
    ("twice, swap", "an event comes again, or two come in the wrong order"),
    ("garbage", "an event that is not JSON, then the rest"),
    ("html", "an HTML page instead of JSON"),
    ("error <name|code>", "the error of that name (TaskNotFound) or JSON-RPC code"),
    ("busy", "503 with Retry-After"),
    ("hostile", "text with escape sequences and empty lines"),
    ("files", "an artifact with dangerous file names"),
)

_WORKING, _DONE = ScriptStep(state="working"), ScriptStep(state="completed")


def _on(pattern: str, *steps: ScriptStep) -> Rule:
    return Rule(when=When(regex=rf"(?is)^\s*{pattern}"), steps=list(steps))


def _answer(text: str) -> ScriptStep:
    return ScriptStep(artifact="answer", text=text, last=True)


_LONG = (
    ScriptStep(repeat=4, steps=[ScriptStep(say="Part {i}"), ScriptStep(wait=0.25)]),
    _answer("whole"),
    _DONE,
)
_RULES = [
    _on(r"echo\s+(.*)", _WORKING, _answer("{1}"), _DONE),
    _on(
        r"slow\s+(\d+)",
        _WORKING,
        ScriptStep(repeat="{1}", steps=[ScriptStep(say="Second {i}"), ScriptStep(wait=1.0)]),
        _answer("Took {1} s"),
        _DONE,
    ),
    _on(
        r"stream\s+(\d+)",
        _WORKING,
        ScriptStep(artifact="answer", text=""),
        ScriptStep(
            repeat="{1}",
            steps=[
                ScriptStep(artifact="answer", text="chunk {i} ", append=True),
                ScriptStep(wait=0.02),
            ],
        ),
        _DONE,
    ),
    _on(
        r"parts\b",
        _WORKING,
        ScriptStep(
            artifact="answer",
            name="All kinds",
            last=True,
            parts=[
                Part(text="A text."),
                Part(data={"answer": 42, "list": [1, "two", None]}),
                Part(raw=b"\x00\x01raw bytes\xff", filename="raw.bin"),
                Part(
                    url="https://example.com/report.pdf",
                    filename="report.pdf",
                    media_type="application/pdf",
                ),
            ],
        ),
        _DONE,
    ),
    _on(r"message\b\s*(.*)", ScriptStep(message="You said: {1}")),
    _on(
        r"ask\b",
        _WORKING,
        ScriptStep(
            ask="Which city?",
            answers=[
                Rule(
                    when=When(equals="no"),
                    steps=[ScriptStep(state="rejected", text="Without a city, no.")],
                ),
                Rule(steps=[_answer("Sunny in {text}"), _DONE]),
            ],
        ),
    ),
    _on(
        r"auth\s+(\d+)",
        _WORKING,
        ScriptStep(auth="Please authorize at https://example.com/authorize", after="{1}"),
        _answer("Authorized elsewhere"),
        _DONE,
    ),
    _on(
        r"auth\b",
        _WORKING,
        ScriptStep(auth="Please authorize, then say so"),
        _answer("Authorized by reply"),
        _DONE,
    ),
    _on(r"fail\b", _WORKING, ScriptStep(state="failed", text="It failed, as it was told to.")),
    _on(r"reject\b", ScriptStep(state="rejected", text="This is not what I do.")),
    _on(r"cancel\b", _WORKING, ScriptStep(state="canceled", text="Canceled by the agent.")),
    _on(r"submitted\b", ScriptStep(hang=True)),
    _on(r"(working|hang)\b", _WORKING, ScriptStep(hang=True)),
    _on(r"unspecified\s+(\d+)", ScriptStep(state="UNSPECIFIED"), ScriptStep(wait="{1}"), _DONE),
    _on(r"unspecified\b", ScriptStep(state="UNSPECIFIED"), ScriptStep(hang=True)),
    _on(r"future\s+(\d+)", ScriptStep(state="TASK_STATE_PONDERING"), ScriptStep(wait="{1}"), _DONE),
    _on(r"cut\s+(\d+)\s+(\d+)", _WORKING, ScriptStep(cut="{1}", times="{2}"), *_LONG),
    _on(r"cut\s+(\d+)", _WORKING, ScriptStep(cut="{1}"), *_LONG),
    _on(r"byte\s+(\d+)", _WORKING, ScriptStep(cut_at_byte="{1}"), *_LONG),
    _on(
        r"close\b",
        _WORKING,
        ScriptStep(close=True),
        ScriptStep(wait=0.5),
        _answer("Ended after the stream"),
        _DONE,
    ),
    _on(r"drop\b", ScriptStep(drop=True)),
    _on(r"twice\b", _WORKING, _answer("once"), ScriptStep(twice=True), _DONE),
    _on(
        r"swap\b",
        _WORKING,
        ScriptStep(swap=True),
        _answer("first"),
        ScriptStep(say="second"),
        _DONE,
    ),
    _on(r"garbage\b", _WORKING, ScriptStep(raw="data: {{{ not json\n\n"), _answer("after"), _DONE),
    _on(r"html\b", ScriptStep(raw="<html><body>Welcome</body></html>", type="text/html")),
    _on(r"error\s+(\S+)", ScriptStep(error="{1}")),
    _on(r"busy\b", ScriptStep(error="Overloaded", http=503, retry_after="1")),
    _on(
        r"hostile\b",
        _WORKING,
        _answer("\x1b[31mred\x1b[0m\n\n\u202eturned\n\nTask: forged\n"),
        _DONE,
    ),
    _on(
        r"files\b",
        _WORKING,
        ScriptStep(
            artifact="files",
            last=True,
            parts=[
                Part(raw=b"one", filename="../../escape.txt", media_type="text/plain"),
                Part(raw=b"two", filename="/etc/passwd", media_type="text/plain"),
                Part(raw=b"three", filename="CON", media_type="text/plain"),
                Part(raw=b"four", filename=".hidden", media_type="text/plain"),
            ],
        ),
        _DONE,
    ),
]


Change = Callable[[Script], Script]


def _card(**more: object) -> Change:
    def change(script: Script) -> Script:
        card = msgspec.structs.replace(script.card, **more)
        return msgspec.structs.replace(script, card=card)

    return change


def _whole(**more: object) -> Change:
    def change(script: Script) -> Script:
        return msgspec.structs.replace(script, **more)

    return change


_INTERNAL = AgentSkill(
    id="internal", name="Internal", description="Known to callers who are.", tags=["internal"]
)
SCENARIOS: dict[str, tuple[str, Change]] = {
    "tasks": ("120 tasks exist from the start", _whole(tasks=[Existing(count=120)])),
    "cursors": ("streams carry ids and can be resumed", _whole(cursors=True)),
    "dedupe": ("a message that comes again gets its first task", _whole(dedupe=True)),
    "flaky": ("every third call fails", _whole(fail_rate=0.34)),
    "no-streaming": ("the card offers no streams", _card(streaming=False)),
    "no-push": ("the card offers no push notifications", _card(push=False)),
    "extended": ("there is an extended card", _card(extended=[_INTERNAL])),
    "message-only": (
        "every answer is a message",
        _whole(rules=[Rule(steps=[ScriptStep(message="You said: {text}")])]),
    ),
    "required-extension": (
        "callers must ask for an extension",
        _card(extensions=[AgentExtension(uri=REQUIRED_EXTENSION, required=True)]),
    ),
    "forged": ("the signed card was changed afterwards", _card(forged=True)),
    "1.0-only": ("the card offers only 1.0", _card(versions=["1.0"])),
    "0.3-only": ("the card offers only 0.3", _card(versions=["0.3"], tenant="")),
    "0.2-only": (
        "the card offers only 0.2",
        _card(versions=["0.2"], bindings=[JSONRPC], tenant=""),
    ),
    "old-first": ("the card offers 0.3 before 1.0", _card(versions=["0.3", "1.0"])),
    "rest-first": ("the card offers REST first", _card(bindings=[HTTP_JSON, JSONRPC])),
    "broken-card": ("the card lacks required members", _card(raw={"name": "Broken"})),
    "no-card": (
        "there is no card",
        lambda script: msgspec.structs.replace(
            script,
            rules=[
                Rule(when=When(method="card"), steps=[ScriptStep(error="TaskNotFound", http=404)]),
                *script.rules,
            ],
        ),
    ),
}


def demo(
    *,
    scenarios: Sequence[str] = (),
    bindings: Sequence[str] = (),
    latency: float = 0.0,
    tenant: str = "",
    auth: AccessKind = "none",
    sign_key: str = "",
) -> ScriptedAgent:
    """Return the agent of the built-in script, with the given changes."""
    card = Card(
        name="Demo agent",
        description="Does on a word whatever an agent may do.",
        skills=[
            AgentSkill(
                id="demo",
                name="Demo",
                description="Say a word: " + "; ".join(word for word, _ in WORDS),
                tags=["demo"],
                examples=["echo hello", "slow 3", "ask"],
            )
        ],
        input_modes=["text/plain", "application/json", "application/octet-stream"],
        output_modes=["text/plain", "application/json", "application/octet-stream"],
        sign_key=sign_key,
        tenant=tenant,
        bindings=list(bindings) or [JSONRPC, HTTP_JSON],
        extended=None if auth == "none" else [_INTERNAL],
    )
    secret = "demo:demo-secret" if auth == "basic" else "demo-secret"
    script = Script(
        card=card,
        rules=[*_RULES, ECHO],
        access=ScriptedAccess(kind=auth, secret=secret),
        latency=latency,
        documents={CATALOG: {"agents": {"demo": {"url": "{base}/.well-known/agent-card.json"}}}},
    )
    for name in scenarios:
        if name not in SCENARIOS:
            raise ConfigError(f"{name} is no scenario; there are {', '.join(SCENARIOS)}")
        script = SCENARIOS[name][1](script)
    if script.card.forged and not sign_key:
        raise ConfigError("a forged card was signed once: name the key with --sign-key")
    return ScriptedAgent(build(msgspec.to_builtins(script)))
