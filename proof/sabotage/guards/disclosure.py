"""Guards on what is told: secrets, control characters, hidden agents, where credentials go."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import chdir, suppress
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

from dragoman.cli import found_env, main, output, redaction, sources
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError
from dragoman.egress.targets import Policy
from dragoman.errors import NoAgentAvailable
from dragoman.gateway.api import api
from dragoman.gateway.registry import agent_cache, registration
from dragoman.gateway.registry import registry as agents
from dragoman.model.identity import Caller, Principal
from dragoman.security import secret_names
from dragoman.security.keys import key_scopes
from dragoman.security.secret_text import hidden_text, hidden_value
from proof.sabotage.patches import Patches, Removal
from proof.sabotage.trial import Finding, Guard, Trial

_VALUE = "hush-4711-hush"
_NAMES = ("auth_token", "dbPassphrase", "X-Api-Key", "clientSecret", "SESSION_ID", "my-api-key-2")
# Long enough that what ends at once does so before it on a busy machine too.
_WITHIN = 4.0


# Checks


async def secrets_in_what_is_shown(trial: Trial) -> Finding:
    """Show members, pairs and texts that are named like secrets; none of their values is seen."""
    shown = [
        form
        for name in _NAMES
        for form in (
            str(hidden_value({"a": [{name: _VALUE}]})),
            hidden_text(f"https://host.example/?{name}={_VALUE}"),
            hidden_text(json.dumps({"inner": json.dumps({name: _VALUE})})),
        )
    ]
    seen = sum(_VALUE in form for form in shown)
    return Finding(not seen, f"{seen} of {len(shown)} forms show a secret")


async def names_of_our_network(trial: Trial) -> Finding:
    """Dial a name that leads to a private address and one that does not exist: both end alike, and
    not before the time is over."""
    clock = asyncio.get_running_loop().time
    ends: list[tuple[type, str, bool]] = []
    for resolver in (_private, _missing):
        async with Egress(resolver=resolver, connect_timeout=_WITHIN) as egress:
            began = clock()
            try:
                await egress.get("https://vault.corp.example/")
            except EgressError as error:
                is_late = clock() - began >= 0.9 * _WITHIN
                ends.append((type(error), str(error), is_late))
    is_kept = len({*ends}) == 1 and all(is_late for *_, is_late in ends)
    return Finding(is_kept, f"{sum(one[2] for one in ends)} of {len(ends)} ended with the time")


async def _private(host: str) -> Sequence[str]:
    return ["10.1.2.3"]


async def _missing(host: str) -> Sequence[str]:
    raise socket.gaierror(socket.EAI_NONAME, "no such name")


async def taken_names(trial: Trial) -> Finding:
    """Register an agent under the name of one that is for others alone: it gets that name, as if
    there were none."""
    from dragoman.stores.sqlite.gateway import SQLiteGatewayStore

    store = SQLiteGatewayStore(str(trial.store))
    await store.open()
    registry = agents.Registry(
        store, Egress(allow=["127.0.0.1"], allow_private=True), watches=False
    )
    said = registration.Registration
    try:
        await registry.open()
        url = "http://127.0.0.1:9"
        hidden = await registry.register(
            said(url=f"{url}/a", name="Ledger", callers=["cid"]), Principal("", "bob")
        )
        made = await registry.register(said(url=f"{url}/b", name="Ledger"), Principal("", "ada"))
        with suppress(NoAgentAvailable):
            registry.visible(hidden.name, Principal("", "ada"))
            return Finding(False, "the hidden agent is seen")
    finally:
        await registry.close()
        await store.close()
    return Finding(made.name == "ledger", f"the second one is called {made.name}")


async def keys_with_some_scopes(trial: Trial) -> Finding:
    """Ask whether the key of an agent that is for tasks may rate and dispute them, or touch an
    account: only one that is for everything may."""
    table = api.TABLE
    caller = Caller("ada", agent="agent", key_scopes=key_scopes.SCOPES - {"*"})
    closed = ("/rate", "/dispute", "/refund", "/balance", "/api-keys")
    asked = [row for row in table.endpoints if row.path.endswith(closed)]
    opened = [row.path for row in asked if key_scopes.allows(caller, row.scope)]
    return Finding(not opened and len(asked) >= 6, f"{len(opened)} of {len(asked)} are open to it")


async def commands_in_a_strange_folder(trial: Trial) -> Finding:
    """Run a command with an exported credential in a folder whose `.env` names the agent: nothing
    is sent there."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        place.settimeout(0.1)
        port = place.getsockname()[1]
        (trial.folder / ".env").write_text(f"A2ACLI_AGENT_CARD=127.0.0.1:{port}\n")
        words = ["card", "get", "--timeout", "200ms"]
        said = await asyncio.to_thread(_run, words, trial.folder, {"A2ACLI_BEARER": _VALUE})
        try:
            place.accept()[0].close()
        except TimeoutError:
            return Finding(b"was found here" in said, "no agent was called")
    return Finding(False, "the address in the file was called")


async def text_that_is_obeyed(trial: Trial) -> Finding:
    """Have a command show what an agent said, as JSON: nothing in it is obeyed by a terminal."""
    redactor = redaction.Redactor()
    out = output.Output(sources.CommandSettings(output="json"), redactor)
    obeyed = "\x7f\x85\x9b\u200e\u202e\u2028\u2066"
    written = _written(lambda: out.json({"said": obeyed})).decode()
    seen = sum(one in written for one in obeyed)
    is_same = json.loads(written) == {"said": obeyed}
    return Finding(not seen and is_same, f"{seen} of {len(obeyed)} are in it as they are")


def _written(write: Any) -> bytes:
    """Return what is written to stdout and stderr meanwhile."""
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = stream = TextIOWrapper(BytesIO(), "utf-8")
    try:
        write()
        stream.flush()
        return stream.buffer.getvalue()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]  # a BytesIO
    finally:
        sys.stdout, sys.stderr = before


def _run(words: list[str], folder: Path, environment: dict[str, str]) -> bytes:
    """Run a command here; return what it says."""
    before = dict(os.environ)
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
    os.environ.update(home | environment)

    def run() -> None:
        with chdir(folder), suppress(SystemExit):
            main.main(words)

    try:
        return _written(run)
    finally:
        os.environ.clear()
        os.environ.update(before)


# Removals


def _instead(answer: Any) -> Any:
    """Return what makes a function that answers anything with the same."""

    def make(original: Any) -> Any:
        def replaced(*asked: Any, **more: Any) -> Any:
            return answer

        return replaced

    return make


def _unchanged(original: Any) -> Any:
    """Return a function that returns what it is given first."""

    def replaced(given: Any, *more: Any) -> Any:
        return given

    return replaced


def _without_names(patches: Patches) -> None:
    patches.put(secret_names, "is_secret", _instead(False))


def _telling_names(patches: Patches) -> None:
    patches.put(Policy, "hides_names", lambda _: False)


def _plain_private_names(patches: Patches) -> None:
    patches.put(agent_cache, "private_name", _unchanged)


def _open_keys(patches: Patches) -> None:
    patches.put(key_scopes, "allows", _instead(True))


def _trusted_files(patches: Patches) -> None:
    patches.put(found_env, "_check", _instead(None))


def _unescaped(patches: Patches) -> None:
    patches.put(output, "json_escaped", _unchanged)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "secret names", "S", "no name is that of a secret", secrets_in_what_is_shown, is_here=True
    ),
    Guard(
        "host names", "S2", "a name of our network ends at once", names_of_our_network, is_here=True
    ),
    Guard("hidden names", "S", "hidden agents have plain names", taken_names, is_here=True),
    Guard("key scopes", "A", "keys are for everything", keys_with_some_scopes, is_here=True),
    Guard(
        "found files", "S", "a found .env is trusted", commands_in_a_strange_folder, is_here=True
    ),
    Guard("obeyed text", "S", "JSON is shown as it is", text_that_is_obeyed, is_here=True),
)
REMOVALS: dict[str, Removal] = {
    "secret names": _without_names,
    "host names": _telling_names,
    "hidden names": _plain_private_names,
    "key scopes": _open_keys,
    "found files": _trusted_files,
    "obeyed text": _unescaped,
}
