"""Guards on keys of agents: which server takes one, what it opens, what makes one, and with what it
ends."""

import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from dragoman import Agent, App, Settings
from dragoman.config import CardSettings, StoreSettings
from dragoman.errors import A2AError, ConfigError, PermissionDenied
from dragoman.http.routes import Route
from dragoman.model import operations as ops
from dragoman.model.agent_key import AgentKeyRow
from dragoman.model.identity import Caller, TaskId
from dragoman.model.message import Json
from dragoman.security.authentication import NEVER, CredentialRefused, Evidence, Pass, recalling
from dragoman.security.keys import agent_keys as ways
from dragoman.security.keys import api_keys, issuance, key_file
from dragoman.security.keys.agent_keys import AgentKeys
from dragoman.security.keys.api_keys import AGENT_PREFIX, ApiKeys, hash_of, new_id, new_text
from dragoman.security.keys.issuance import KeyTerms, terms_of
from dragoman.server import scoped_service
from dragoman.server.scoped_service import ScopedService
from dragoman.service import Call
from dragoman.stores.interface.agents import AgentRow
from dragoman.stores.sqlite.gateway import SQLiteGatewayStore
from dragoman.stores.sqlite.registry import agent_keys
from proof.sabotage.patches import Patches, Removal
from proof.sabotage.trial import Finding, Guard, Trial

_AGENT = "0190-agent"
_DAY = timedelta(days=1)
_HEARTBEAT = frozenset({"agents:heartbeat"})


class _Keys:
    """The keys of agents in a store."""

    def __init__(self, store: SQLiteGatewayStore) -> None:
        self._store = store

    def version(self) -> int:
        return self._store.agent_keys.version()

    def changed(self, after: int) -> Sequence[AgentKeyRow]:
        return self._store.agent_keys.changed(after)

    async def refresh(self) -> None:
        await self._store.agent_keys.refresh()

    def secret(self) -> bytes:
        return hashlib.sha256(b"proof" + self._store.secret).digest()


class _Desk:
    """A key file, a store, and the ways in by both; time passes when it is told to."""

    def __init__(self, folder: Path, store: SQLiteGatewayStore) -> None:
        self.passed = 0.0
        self.file = folder / "keys.json"
        self.store = store
        self.parents = ApiKeys(self.file, now=self.now, monotonic=self.monotonic)
        self.way = AgentKeys(_Keys(store), now=self.now, monotonic=self.monotonic)
        self.way.others = recalling([self.parents])

    def now(self) -> float:
        return time.time() + self.passed

    def monotonic(self) -> float:
        return 1.0 + self.passed

    async def maker(
        self,
        *scopes: str,
        tenant: str | None = None,
        lifetime: timedelta | None = None,
    ) -> Pass:
        """Return who is let in by a new key of the file."""
        _, text = key_file.create(
            self.file, "ada", scopes=list(scopes), tenant=tenant, lifetime=lifetime
        )
        self.passed += 2
        found = await self.parents.authenticate(_shown(text))
        assert found is not None, "a key of the file lets its owner in"
        return found

    async def mint(self, maker: Pass, *scopes: str) -> str:
        """Make a key by a credential."""
        terms = terms_of(maker, scopes, until=NEVER, now=self.now())
        text = new_text(id := new_id(), AGENT_PREFIX)
        row = self._row(id, text, terms)
        await self.store.agent_keys.put(row, most=9)
        self.way.look_again()
        return text

    def _row(self, id: str, text: str, terms: KeyTerms) -> AgentKeyRow:
        parent = terms.parent
        return AgentKeyRow(
            id,
            hash_of(text),
            _AGENT,
            "a key",
            terms.tenant,
            terms.principal.owner,
            " ".join(terms.scopes),
            parent.name,
            parent.ref,
            self.way.keyed(parent.name, parent.mark),
            terms.generation,
            int(self.now() * 1000),
            None if terms.until == NEVER else int(terms.until * 1000),
        )

    async def opens(self, way: Any, text: str) -> Caller | None:
        """Return the caller a key lets in, if any."""
        try:
            found = await way.authenticate(_shown(text))
        except CredentialRefused:
            return None
        return found.caller if found is not None and way.still_holds(found) else None


def _shown(text: str) -> Evidence:
    return Evidence([(b"x-api-key", text.encode())])


@contextlib.asynccontextmanager
async def _desk(trial: Trial) -> AsyncGenerator[_Desk]:
    store = SQLiteGatewayStore(trial.folder / "gateway.db")
    await store.open()
    await store.prepare()
    try:
        await store.prepare()
        await store.agents.put(AgentRow(_AGENT, "bank", b"{}", "online", 0, 0))
        yield _Desk(trial.folder, store)
    finally:
        await store.close()


def _told(opened: Sequence[str]) -> Finding:
    return Finding(not opened, f"opened: {', '.join(opened) or 'nothing'}")


# Checks


async def keys_elsewhere(trial: Trial) -> Finding:
    """Show keys of agents, one of them written by 0.5 into the file, to a server of key files."""
    async with _desk(trial) as desk:
        made = await desk.mint(await desk.maker())
        old = new_text(id := new_id(), AGENT_PREFIX)
        keys = key_file.read_keys(desk.file)
        more = {"id": id, "hash": hash_of(old).hex(), "agent": _AGENT}
        keys.append(msgspec.structs.replace(keys[0], **more))
        desk.file.write_bytes(msgspec.json.encode(api_keys.KeyFile(keys)))
        desk.passed += 2
        shown = {"of a gateway": made, "of the file": old}
        return _told([name for name, text in shown.items() if await desk.opens(desk.parents, text)])


async def keys_of_the_dead(trial: Trial) -> Finding:
    """End what keys were made by: a key of the file, and a key of an agent in the middle."""
    async with _desk(trial) as desk:
        maker = await desk.maker()
        first = await desk.mint(maker)
        found = await desk.way.authenticate(_shown(first))
        assert found is not None, "it holds until its maker ends"
        second = await desk.mint(found)
        assert maker.credential is not None, "keys of the file can be known again"
        key_file.revoke(desk.file, maker.credential.name.partition(":")[2])
        desk.passed += 2
        shown = {"a child": first, "a child's child": second}
        return _told([name for name, text in shown.items() if await desk.opens(desk.way, text)])


async def revoked_elsewhere(trial: Trial) -> Finding:
    """Revoke a key in one process and show it in another a second later."""
    async with _desk(trial) as desk:
        other = AgentKeys(_Keys(desk.store), now=desk.now, monotonic=desk.monotonic)
        other.others = desk.way.others
        text = await desk.mint(await desk.maker())
        found = await other.authenticate(_shown(text))
        assert found is not None, "it holds until it is revoked"
        id = text.split("_")[1]
        await desk.store.agent_keys.revoke(id, 1)
        desk.passed += 1
        still = other.still_holds(found)
        return Finding(not still, "it still opened" if still else "it opened nothing more")


async def keys_of_the_removed(trial: Trial) -> Finding:
    """Remove an agent that has a key."""
    async with _desk(trial) as desk:
        text = await desk.mint(await desk.maker())
        await desk.store.agents.remove(_AGENT, 1)
        desk.passed += 1
        return _told(["its key"] if await desk.opens(desk.way, text) else [])


async def stronger_keys(trial: Trial) -> Finding:
    """Make keys by a credential of one tenant, one scope and one day."""
    async with _desk(trial) as desk:
        maker = await desk.maker("tasks:read", tenant="acme", lifetime=_DAY)
        terms = terms_of(maker, (), until=NEVER, now=desk.now())
        more = [] if terms.tenant == "acme" else ["every tenant"]
        more += [] if terms.until <= maker.until else ["no end"]
        with contextlib.suppress(PermissionDenied):
            terms_of(maker, ["tasks:write"], until=NEVER, now=desk.now())
            more.append("another scope")
        anonymous = msgspec.structs.replace(maker, caller=Caller("", authenticated=True))
        with contextlib.suppress(PermissionDenied):
            terms_of(anonymous, (), until=NEVER, now=desk.now())
            more.append("for the local user")
    return Finding(not more, f"given: {', '.join(more) or 'no more than its maker has'}")


async def scoped_skills(trial: Trial) -> Finding:
    """Ask a skill for what its scope grants, by a key of that name."""
    agent = Agent("Bank", "Pays.")

    @agent.skill(scopes=["tasks:write"], tags=["proof"])
    async def pay(text: str) -> str:
        """Pay."""
        return text

    _ = pay
    async with _desk(trial) as desk:
        caller = await desk.opens(desk.way, await desk.mint(await desk.maker(), "tasks:write"))
        assert caller is not None, "it lets its holder in"
        said: Any = trial.said("pay", "7")
        from dragoman.dialects.v1_0 import V1_0

        operation: Any = V1_0.decode_request("SendMessage", said)
        opened: list[str] = []
        with contextlib.suppress(PermissionDenied):
            agent.admit(caller, operation)
            opened.append("the skill")
        return _told(opened)


class _Known:
    """Lets in the bearer of a key that is for heartbeats."""

    name, challenge = "proof", ""
    reads = frozenset({b"x-api-key"})

    def __init__(self) -> None:
        self.schemes: dict[str, dict[str, Json]] = {}

    async def start(self) -> None:
        """There is nothing to make ready."""

    async def stop(self) -> None:
        """There is nothing to let go of."""

    async def authenticate(self, evidence: Evidence) -> Pass | None:
        return Pass(Caller("key:a", True, agent=_AGENT, key_scopes=_HEARTBEAT), self)

    def still_holds(self, found: Pass) -> bool:
        return True


async def routes_of_heartbeats(trial: Trial) -> Finding:
    """Ask a server whose cards are not public for one, by a key that is for heartbeats."""
    agent = Agent("Bank", "Pays.")
    settings = Settings(stores=StoreSettings(location="memory:"), cards=CardSettings(public=False))
    app = App(agent, settings=settings, authenticators=[_Known()])
    async with app.running():
        status = await _status(app, "/.well-known/agent-card.json")
    return Finding(status == 403, f"answered {status}")


async def _status(app: App, path: str) -> int:
    found: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        found.extend([message["status"]] if "status" in message else [])

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "scheme": "http"}
    headers = [(b"host", b"localhost"), (b"x-api-key", b"x")]
    await app({**scope, "headers": headers, "client": ("127.0.0.1", 1)}, receive, send)
    return found[0]


class _Answers:
    """A service that answers everything."""

    async def answer(self, call: Call) -> Any:
        return None

    def follow(self, call: Call) -> Any:
        raise NotImplementedError


async def operations_of_heartbeats(trial: Trial) -> Finding:
    """Call operations by a key that is for heartbeats, and one that no scope names by another."""
    service = ScopedService(_Answers())
    heartbeats = Caller("key:a", True, agent=_AGENT, key_scopes=_HEARTBEAT)
    tasks = Caller("key:a", True, agent=_AGENT, key_scopes=frozenset({"tasks:write"}))
    asked = {
        "reading": Call(operation=ops.GetTask(task_id=TaskId("t")), caller=heartbeats),
        "cancelling": Call(operation=ops.CancelTask(task_id=TaskId("t")), caller=heartbeats),
        "what no scope names": Call(operation=ops.GetExtendedCard(), caller=tasks),
    }
    opened: list[str] = []
    for name, call in asked.items():
        with contextlib.suppress(A2AError):
            await service.answer(call)
            opened.append(name)
    return _told(opened)


async def stronger_successors(trial: Trial) -> Finding:
    """Rotate a key of one day into one of a year."""
    file = trial.folder / "keys.json"
    key, _ = key_file.create(file, "ada", scopes=[], tenant=None, lifetime=_DAY)
    made: list[str] = []
    with contextlib.suppress(ConfigError):
        key_file.rotate(file, key.id, overlap=timedelta(0), lifetime=365 * _DAY)
        made.append("a key of a year")
    return Finding(not made, f"made: {', '.join(made) or 'nothing'}")


# Removals


def _answering(value: Any) -> Callable[[Any], Any]:
    """Return what replaces a function by one that always says the same."""

    def make(_: Any) -> Any:
        def answer(*given: Any, **named: Any) -> Any:
            return value

        return answer

    return make


def _elsewhere(patches: Patches) -> None:
    """Take keys of agents for keys like any other."""

    def read(original: Any) -> Any:
        def as_ordinary(text: str) -> tuple[str, str]:
            return api_keys.PREFIX, original(text)[1]

        return as_ordinary

    def entries(original: Any) -> Any:
        def ordinary(self: Any, body: bytes) -> Any:
            found = original(self, body).items()
            return {id: msgspec.structs.replace(one, is_of_agent=False) for id, one in found}

        return ordinary

    patches.put(api_keys, "read_text", read)
    patches.put(ApiKeys, "_entries", entries)


def _lineage(patches: Patches) -> None:
    patches.put(AgentKeys, "stands", _answering(True))


def _news(patches: Patches) -> None:
    patches.put(ways, "LOOK_EVERY", lambda _: 1e9)


def _removal(patches: Patches) -> None:
    patches.put(agent_keys, "revoke_all", _answering([]))


def _tenant(patches: Patches) -> None:
    def make(kind: Any) -> Any:
        def unbound(principal: Any, tenant: Any, *more: Any) -> Any:
            return kind(principal, None, *more)

        return unbound

    patches.put(issuance, "KeyTerms", make)


def _wanted_scopes(maker: Pass, wanted: Sequence[str]) -> frozenset[str]:
    return frozenset(wanted)


def _subset(patches: Patches) -> None:
    patches.put(issuance, "_granted_scopes", lambda _: _wanted_scopes)


def _expiry(patches: Patches) -> None:
    patches.put(issuance, "_end", _answering(NEVER))


def _anonymous(patches: Patches) -> None:
    patches.put(issuance, "_is_proven", _answering(True))


def _grants(patches: Patches) -> None:
    """Let the scopes of a key be scopes of skills as well."""

    def make(original: Any) -> Any:
        def granting(key: Any) -> Any:
            entry = original(key)
            scopes = entry.caller.key_scopes
            caller = msgspec.structs.replace(entry.caller, scopes=scopes)
            return msgspec.structs.replace(entry, caller=caller)

        return granting

    patches.put(ways, "_entry", make)


def _routes(patches: Patches) -> None:
    patches.put(Route, "opens_to", _answering(True))


def _operations(patches: Patches) -> None:
    patches.put(scoped_service, "_refusal", _answering(None))


def _unnamed(patches: Patches) -> None:
    """Let an operation that no scope names go by the scope of tasks."""
    patches.put(scoped_service, "EVERYTHING", lambda _: "tasks:write")


def _successor(patches: Patches) -> None:
    patches.put(key_file, "check_rotation", _answering(None))


GUARDS: tuple[Guard, ...] = (
    Guard("home", "A1", "servers take keys of agents", keys_elsewhere, is_here=True),
    Guard("lineage", "A2", "keys outlive what made them", keys_of_the_dead, is_here=True),
    Guard("key news", "A1", "processes look once at keys", revoked_elsewhere, is_here=True),
    Guard("removal", "A1", "keys outlive their agent", keys_of_the_removed, is_here=True),
    Guard("key tenant", "A2", "a key is of any tenant", stronger_keys, is_here=True),
    Guard("key subset", "A2", "a key is for any scope", stronger_keys, is_here=True),
    Guard("key end", "A2", "a key has no end", stronger_keys, is_here=True),
    Guard("anonymous", "A1", "keys are made for the local user", stronger_keys, is_here=True),
    Guard("grants", "A2", "scopes of keys open skills", scoped_skills, is_here=True),
    Guard("routes", "A1", "routes ask for no scope", routes_of_heartbeats, is_here=True),
    Guard("operations", "A1", "no scope is asked for", operations_of_heartbeats, is_here=True),
    Guard("unnamed", "A1", "what no scope names is open", operations_of_heartbeats, is_here=True),
    Guard("successor", "A2", "successors may be stronger", stronger_successors, is_here=True),
)
REMOVALS: dict[str, Removal] = {
    "home": _elsewhere,
    "lineage": _lineage,
    "key news": _news,
    "removal": _removal,
    "key tenant": _tenant,
    "key subset": _subset,
    "key end": _expiry,
    "anonymous": _anonymous,
    "grants": _grants,
    "routes": _routes,
    "operations": _operations,
    "unnamed": _unnamed,
    "successor": _successor,
}
