"""One table names what is secret, and every place that hides something goes by it."""

import ast
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dragoman.cli.redaction import Redactor
from dragoman.config import FIELDS, SECRETS
from dragoman.gateway.delivery.outgoing import clean
from dragoman.security import secret_names
from dragoman.security.audit.log import AuditLog
from dragoman.security.secret_names import holds_secret, is_secret
from dragoman.security.secret_text import hidden_text, hidden_value
from dragoman.telemetry.logs import JsonFormat, TextFormat
from dragoman.testing.cassettes.cassette import content
from dragoman.testing.cassettes.redaction import FORM, CassetteRedaction
from tests.security.secret_name_cases import OPEN_NAMES, SECRET_NAMES

PACKAGE = Path(secret_names.__file__).parent.parent
# With a digit, as those have that are made by machines.
VALUE = "HUSH-4711-HUSH"


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_of_a_secret_is_known_in_every_spelling(name: str) -> None:
    assert is_secret(name) and is_secret(name, "parameter") and is_secret(name, "metadata")


@pytest.mark.parametrize("name", OPEN_NAMES)
def test_a_name_that_only_looks_like_one_is_none(name: str) -> None:
    assert not (is_secret(name) or is_secret(name, "parameter") or is_secret(name, "metadata"))


@pytest.mark.parametrize("name", ["code", "sig", "X-Amz-Signature"])
def test_what_lets_in_by_an_address_is_something_else_in_a_document(name: str) -> None:
    assert is_secret(name, "parameter") and not is_secret(name)


def test_a_bare_key_is_hidden_but_goes_on_to_an_agent() -> None:
    assert is_secret("key") and is_secret("key", "parameter") and not is_secret("key", "metadata")


def test_flags_and_numbers_of_tokens_are_no_secrets() -> None:
    assert not holds_secret("hasPassword", True) and not holds_secret("token", None)
    assert not holds_secret("tokens", 512) and holds_secret("tokens", ["a"])
    assert holds_secret("password", 471100)


def test_what_follows_the_word_of_a_scheme_is_hidden_whatever_the_scheme() -> None:
    for line in ("Authorization: Token", "proxy-authorization: ApiKey", "authorization:\tHawk"):
        assert hidden_text(f"{line} {VALUE} x") == f"{line} <redacted> x"
    assert hidden_text("Authorization: every caller needs it") == (
        "Authorization: every caller needs it"
    )


def test_a_name_of_any_length_is_judged_by_its_ends() -> None:
    assert is_secret("x" * 10_000 + "_password") and is_secret("password_" + "x" * 10_000)


# What hides: each takes a name and returns what is left of it and its value.


def _record(message: str, **more: Any) -> logging.LogRecord:
    record = logging.LogRecord("dragoman", logging.INFO, "", 0, message, (), None)
    vars(record).update(more)
    return record


def _failed(text: str) -> logging.LogRecord:
    record = _record("it failed")
    try:
        raise ValueError(text)
    except ValueError:
        record.exc_info = sys.exc_info()
    return record


def _deep(name: str) -> Any:
    return {"a": [{"b": {name: VALUE}}], name: {"inner": [VALUE]}}


def _nested(name: str) -> str:
    return json.dumps({"payload": json.dumps({"inner": json.dumps({name: VALUE})})})


def _span(name: str) -> str:
    from dragoman.telemetry.spans import _exported_value  # pyright: ignore[reportPrivateUsage]  # its rule

    return f"{_exported_value(name, VALUE)} {_exported_value('said', f'{name}={VALUE}')}"


def _audited(name: str) -> str:
    class Kept(AuditLog):
        def _queue(self, entry: Any) -> bool:
            self.kept = entry
            return False

    log = Kept("unwritten")
    log.record("act", outcome="done", object=f"x {name}={VALUE}", reason=json.dumps({name: VALUE}))
    return str(log.kept)


PLACES: dict[str, Callable[[str], str]] = {
    "--debug of JSON": lambda name: Redactor().body(json.dumps(_deep(name)).encode()),
    "--debug of a form": lambda name: Redactor().body(f"{quote(name)}={VALUE}&x=1".encode()),
    "--debug of an address": lambda name: Redactor().text(
        f"https://h/?x=1&{quote(name)}={VALUE}#f"
    ),
    "--debug of a header": lambda name: Redactor().header(name, VALUE),
    "a note of variables": lambda name: Redactor().text(f"export {name}='{VALUE} and more'\nA=1"),
    "a note of JSON in JSON": lambda name: Redactor().text(_nested(name)),
    "a note of a header": lambda name: Redactor().text(f"{name}: {VALUE}"),
    "a note of a header in quotes": lambda name: Redactor().text(f'{name}: "{VALUE}"'),
    "a note of lists in JSON in JSON": lambda name: Redactor().text(
        json.dumps({"a": json.dumps({name: [{"in": VALUE}], "b": [f"]{name}"]})})
    ),
    "a piece of an object": lambda name: Redactor().text(json.dumps({name: {"in": VALUE}})[:-3]),
    "a pair of name and value": lambda name: Redactor().body(
        json.dumps({"headers": [{"name": name, "value": VALUE}]}).encode()
    ),
    "config show": lambda name: str(Redactor().value(_deep(name))),
    "a command": lambda name: Redactor().word(f"https://h/?{quote(name)}={VALUE}"),
    "a recorded member": lambda name: str(CassetteRedaction().value(_deep(name))),
    "a recorded query": lambda name: CassetteRedaction().query(f"{quote(name)}={VALUE}&x=1"),
    "a recorded form": lambda name: str(
        content(f"{quote(name)}={VALUE}".encode(), FORM, CassetteRedaction())
    ),
    "a recorded piece": lambda name: CassetteRedaction().loose(json.dumps({name: VALUE})[:-2]),
    "a recorded header": lambda name: str(CassetteRedaction().headers({name.lower(): VALUE})),
    "metadata for an agent": lambda name: str(clean(_deep(name))),
    "a line of log": lambda name: TextFormat().format(_record(f"got {name}={VALUE}")),
    "a line of log in JSON": lambda name: JsonFormat().format(
        _record(json.dumps({name: VALUE}), facts=_deep(name))
    ),
    "a traceback": lambda name: TextFormat().format(_failed(f"{{'{name}': '{VALUE}'}}")),
    "a span": _span,
    "the audit log": _audited,
    "the card of another": lambda name: str(hidden_value(_deep(name), lambda text: text)),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_hides_every_name(place: str) -> None:
    assert [name for name in SECRET_NAMES if "4711" in PLACES[place](name)] == []


# Headers are shown by a list of harmless ones, and no form is recorded at all.
_BY_LIST = ("--debug of a header", "a recorded header", "a recorded form")


@pytest.mark.parametrize("place", [place for place in PLACES if place not in _BY_LIST])
def test_every_place_shows_what_only_looks_like_one(place: str) -> None:
    assert [name for name in OPEN_NAMES if "4711" not in PLACES[place](name)] == []


def test_a_secret_setting_is_one_by_the_table() -> None:
    # Names of files, switches, and the name of a header.
    others = {"auth", "auth_tokens", "keys", "jwt_keys", "tls_key", "sign_key", "push_tokens"}
    others |= {"api_key_header"}
    named = {name for name in FIELDS if is_secret(name)}
    assert named - others == SECRETS


# Other lists

# Lists of names that are no list of what to hide.
NO_TABLES = {
    "console/console.py": "ways for people to sign in, in words",
    "config/group.py": "our own settings, held to the table above",
    "cli/hints.py": "flags, and what is filled in for them",
    "cli/serving/listening.py": "ways for callers to prove who they are, in a help text",
    "dialects/card_check.py": "ways to a token that a card may declare",
    "security/card_members.py": "ways to a token that a card may declare",
    "security/card_keys.py": "types of keys",
    "server/authenticators.py": "settings, and which way to be known needs them",
}


def _texts(node: ast.AST) -> list[str]:
    """Return the texts that stand beside each other in a literal."""
    if isinstance(node, ast.Set | ast.List | ast.Tuple):
        parts: list[Any] = list(node.elts)
    elif isinstance(node, ast.Dict):
        parts = list(node.keys)
    else:
        return []
    return [
        one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]


def _is_list_of_names(names: list[str]) -> bool:
    named = {name for name in names if len(name) < 40 and is_secret(name)}
    return len(named) >= 4 and 2 * len(named) >= len(names)


def _is_pattern_of_names(text: str) -> bool:
    named = {word for word in re.findall(r"[A-Za-z]+", text) if is_secret(word)}
    return "|" in text and len(named) >= 3


def other_tables(source: str) -> list[int]:
    """Return the lines where names of secrets are listed, or spelled out in a pattern."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.expr):
            continue
        text = node.value if isinstance(node, ast.Constant) else None
        is_pattern = isinstance(text, str) and _is_pattern_of_names(text)
        if is_pattern or _is_list_of_names(_texts(node)):
            found.append(node.lineno)
    return found


def _modules() -> Iterator[Path]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "secret_names.py":
            yield path


def test_no_other_list_of_such_names_is_in_the_package() -> None:
    found = {
        str(path.relative_to(PACKAGE)): lines
        for path in _modules()
        if (lines := other_tables(path.read_text(encoding="utf-8")))
    }
    assert {name: lines for name, lines in found.items() if name not in NO_TABLES} == {}
    assert found.keys() == NO_TABLES.keys(), "an exception that is none any more"


@pytest.mark.parametrize(
    "source",
    [
        'X = frozenset({"token", "secret", "password", "apikey"})',
        'X = ("authorization", "cookie", "set-cookie", "x-api-key")',
        'X = {"password": 1, "token": 2, "client_secret": 3, "jwt": 4}',
        'X = re.compile(r"authorization|cookie|token|secret|passw")',
    ],
)
def test_another_list_would_be_found(source: str) -> None:
    assert other_tables(source) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "\\" * 50_000,
        '"' * 50_000,
        '"a":"' * 10_000,
        "a" * 50_000 + "=",
        "a:" * 25_000,
        "[" * 50_000,
    ],
)
def test_a_text_of_a_stranger_is_read_in_time_that_grows_with_its_length(text: str) -> None:
    began = time.process_time()
    hidden_text(text)
    # Milliseconds in truth; what grows with the square takes many seconds.
    assert time.process_time() - began < 2
