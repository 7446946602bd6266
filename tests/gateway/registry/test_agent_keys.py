"""Keys of agents: what makes one, what it may be for, and with what it ends. The ways in and the
store are real, the time is moved by hand."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from harness.certificates import DAY, Authority, pem, uri
from harness.clock import SkippingClock

from dragoman.errors import InvalidParams, NoAgentAvailable, PermissionDenied, RateLimited
from dragoman.gateway.registry import agent_keys
from dragoman.gateway.registry.agent_keys import AgentKeyring, StoredKeys
from dragoman.gateway.registry.registered import Registered
from dragoman.model.identity import Caller, Principal
from dragoman.security.authentication import NEVER, CredentialRefused, Evidence, Pass, recalling
from dragoman.security.bearer_tokens import BearerTokens
from dragoman.security.certificates import ClientCertificates
from dragoman.security.jwt.authenticator import JwtAuthenticator
from dragoman.security.keys import issuance, key_file
from dragoman.security.keys.agent_keys import AgentKeys
from dragoman.security.keys.api_keys import ApiKeys
from dragoman.security.keys.key_scopes import SCOPES, allows, grantable
from dragoman.stores.interface.agents import AgentRow
from dragoman.stores.sqlite.gateway import SQLiteGatewayStore
from tests.security.jwt.minting import AUDIENCE, ISSUER, jwks, token

pytestmark = pytest.mark.anyio
ALICE = "alice-0123456789abcdef"
HOUR = 3600.0


def agent_of(owner: str) -> Registered:
    return Registered(
        id="0190-a",
        name="bank",
        title="Bank",
        url="http://127.0.0.1:9/",
        owner=Principal.read(owner),
    )


class Desk:
    """Where keys are made and shown, of one process."""

    def __init__(
        self, store: SQLiteGatewayStore, clock: SkippingClock, ways: Sequence[Any]
    ) -> None:
        self.clock = clock
        self.way = AgentKeys(StoredKeys(store), now=clock.now, monotonic=clock.monotonic)
        self.ways = [self.way, *ways]
        self.way.others = recalling(self.ways)
        self.ring = AgentKeyring(store, self.way, clock.now)

    async def shown(self, *headers: tuple[str, str], certificate: bytes | None = None) -> Pass:
        """Return who is let in by what is shown; raises `CredentialRefused`."""
        evidence = Evidence([(a.encode(), b.encode()) for a, b in headers], certificate)
        for way in self.ways:
            try:
                found = await way.authenticate(evidence)
            except CredentialRefused:
                if way is self.ways[-1]:
                    raise
                continue
            if found is not None:
                assert way.still_holds(found)
                return found
        raise CredentialRefused("nobody")

    async def by_key(self, text: str) -> Pass:
        found = await self.way.authenticate(Evidence([(b"x-api-key", text.encode())]))
        assert found is not None and self.way.still_holds(found)
        return found

    async def reason(self, text: str) -> str:
        with pytest.raises(CredentialRefused) as refused:
            await self.way.authenticate(Evidence([(b"x-api-key", text.encode())]))
        return refused.value.reason

    async def made(self, maker: Pass, *scopes: str, days: int | None = None) -> str:
        agent = agent_of(maker.caller.principal.text)
        return (await self.ring.create(agent, maker, "a key", scopes=scopes, days=days))[1]


@asynccontextmanager
async def desk(folder: Path, *ways: Any) -> AsyncGenerator[Desk]:
    store, clock = SQLiteGatewayStore(folder / "gateway.db"), SkippingClock()
    await store.open()
    await store.prepare()
    await store.agents.put(AgentRow("0190-a", "bank", b"{}", "online", 0, 0))
    try:
        yield Desk(store, clock, [one(clock) for one in ways])
    finally:
        await store.close()


class File:
    """A key file, and the way in by it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.json"

    def create(self, **more: Any) -> tuple[str, str]:
        given: dict[str, Any] = {"scopes": [], "tenant": None, "lifetime": None}
        key, text = key_file.create(self.path, "ada", **given | more)
        return key.id, text

    def way(self, clock: SkippingClock) -> ApiKeys:
        return ApiKeys(self.path, now=clock.now, monotonic=clock.monotonic)


async def test_a_key_acts_for_its_maker_and_for_what_its_scopes_name(tmp_path: Path) -> None:
    file = File(tmp_path)
    _, text = file.create()
    async with desk(tmp_path, file.way) as there:
        maker = await there.shown(("x-api-key", text))
        made = await there.made(maker, "agents:heartbeat", days=30)
        assert (
            made.startswith("nxk_") and made.encode() not in (tmp_path / "gateway.db").read_bytes()
        )
        found = await there.by_key(made)
        caller = found.caller
        assert caller.principal == Principal("", "key:ada") == maker.caller.principal
        assert caller.authenticated and caller.scopes == frozenset()
        assert found.until == pytest.approx(there.clock.now() + 30 * 24 * HOUR, abs=5)
        assert allows(caller, "agents:heartbeat", "0190-a")
        assert not allows(caller, "agents:write", "0190-a")
        assert not allows(caller, "agents:heartbeat", "another agent")
        whole = (await there.by_key(await there.made(maker))).caller
        assert allows(whole, "tasks:write") and allows(whole, "*", "0190-a")
        # A caller that came another way is not held by these.
        assert allows(Caller("token:alice", True, frozenset({"maps"})), "agents:write", "0190-a")


async def test_no_key_is_made_without_a_credential_or_for_the_agent_of_another(
    tmp_path: Path,
) -> None:
    file = File(tmp_path)
    _, text = file.create(scopes=["dragoman:operator"])
    async with desk(tmp_path, file.way) as there:
        maker = await there.shown(("x-api-key", text))
        nameless = Pass(Caller("", True), there.way, credential=maker.credential)
        unproven = Pass(Caller("key:ada"), there.way, credential=maker.credential)
        for wrong in (None, nameless, unproven):
            with pytest.raises(PermissionDenied, match="--auth"):
                await there.ring.create(agent_of(""), wrong, "x")
        # What belongs to the local user, and what belongs to others, also for an operator.
        for owner in ("", "key:bob", "token:ada"):
            with pytest.raises(PermissionDenied, match="owner makes"):
                await there.ring.create(agent_of(owner), maker, "x")
        # A credential that cannot be known again.
        unknown = Pass(maker.caller, there.way)
        with pytest.raises(PermissionDenied, match="told later"):
            await there.ring.create(agent_of("key:ada"), unknown, "x")
        locked = AgentKeyring(SQLiteGatewayStore(tmp_path / "none.db"), None)
        with pytest.raises(PermissionDenied, match="--auth"):
            await locked.create(agent_of("key:ada"), maker, "x")
        assert not await there.ring.all(agent_of(""))


async def test_what_makes_no_sense_is_not_made(tmp_path: Path) -> None:
    file = File(tmp_path)
    _, text = file.create()
    async with desk(tmp_path, file.way) as there:
        maker, agent = await there.shown(("x-api-key", text)), agent_of("key:ada")
        for wrong in (["dragoman:operator"], ["*", "dragoman:admin"], ["maps"]):
            with pytest.raises(InvalidParams, match="scopes"):
                await there.ring.create(agent, maker, "x", scopes=wrong)
        for days in (0, 366):
            with pytest.raises(InvalidParams, match="expiresInDays"):
                await there.ring.create(agent, maker, "x", days=days)
        for label in ("", "x" * 101):
            with pytest.raises(InvalidParams, match="name"):
                await there.ring.create(agent, maker, label)


async def test_an_agent_has_no_more_keys_than_every_process_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_keys, "MOST_KEYS", 2)
    file = File(tmp_path)
    _, text = file.create()
    async with desk(tmp_path, file.way) as there:
        maker, agent = await there.shown(("x-api-key", text)), agent_of("key:ada")
        first, _ = await there.ring.create(agent, maker, "x")
        await there.ring.create(agent, maker, "x", days=1)
        with pytest.raises(RateLimited):
            await there.ring.create(agent, maker, "x")
        await there.ring.revoke(agent, first.id)
        await there.ring.create(agent, maker, "x")
        # Those that ended do not count, and are forgotten after a season.
        there.clock.passed += 100 * 24 * HOUR
        await there.ring.create(agent, maker, "x")
        assert first.id not in [key.id for key in await there.ring.all(agent)]


# No stronger than what made it


async def test_a_key_is_of_the_tenant_of_its_maker(tmp_path: Path) -> None:
    file = File(tmp_path)
    _, bound = file.create(tenant="acme")
    _, free = file.create()
    async with desk(tmp_path, file.way) as there:
        for text, tenant in ((bound, "acme"), (free, None)):
            key = await there.made(await there.shown(("x-api-key", text)))
            child = await there.made(await there.by_key(key), "tasks:read")
            assert [(await there.by_key(one)).caller.tenant for one in (key, child)] == [tenant] * 2


@pytest.mark.parametrize(
    ("own", "wanted", "given"),
    [
        # A credential that names none of the scopes is not restricted.
        ([], ["*"], ["*"]),
        ([], [], ["*"]),
        (["maps", "dragoman:operator"], [], ["*"]),
        (["*"], ["tasks:write", "agents:read"], ["agents:read", "tasks:write"]),
        (["tasks:read"], ["tasks:read"], ["tasks:read"]),
        (["tasks:read", "maps"], [], ["tasks:read"]),
        (["tasks:read"], ["tasks:write"], None),
        (["tasks:read", "tasks:write"], ["*"], None),
        (["agents:write"], ["agents:heartbeat"], None),
    ],
)
async def test_the_scopes_of_a_key_are_some_of_its_makers(
    tmp_path: Path, own: list[str], wanted: list[str], given: list[str] | None
) -> None:
    file = File(tmp_path)
    _, text = file.create(scopes=own)
    async with desk(tmp_path, file.way) as there:
        maker = await there.shown(("x-api-key", text))
        if given is None:
            with pytest.raises(PermissionDenied, match="no more than"):
                await there.made(maker, *wanted)
            return
        caller = (await there.by_key(await there.made(maker, *wanted))).caller
        assert sorted(caller.key_scopes or ()) == given and not caller.scopes
        # What it makes is held to what it has itself.
        assert grantable(caller) == (SCOPES if given == ["*"] else frozenset(given))


async def test_a_key_ends_no_later_than_its_maker(tmp_path: Path) -> None:
    file = File(tmp_path)
    _, short = file.create(lifetime=timedelta(days=1))
    _, free = file.create()
    async with desk(tmp_path, file.way) as there:
        maker = await there.shown(("x-api-key", short))
        for days in (None, 1, 365):
            key = await there.made(maker, days=days)
            assert (await there.by_key(key)).until <= maker.until < NEVER
        one = await there.made(await there.shown(("x-api-key", free)), days=2)
        child = await there.made(await there.by_key(one), days=300)
        assert (await there.by_key(child)).until <= (await there.by_key(one)).until
        there.clock.passed += 24 * HOUR + 1
        assert "expired" in await there.reason(key)
        assert (await there.by_key(child)).caller.owner == "key:ada"
        with pytest.raises(PermissionDenied, match="ends now"):
            await there.made(maker)


async def test_no_more_than_some_keys_are_made_one_by_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuance, "MOST_GENERATIONS", 3)
    file = File(tmp_path)
    _, text = file.create()
    async with desk(tmp_path, file.way) as there:
        found = await there.shown(("x-api-key", text))
        for _ in range(3):
            found = await there.by_key(await there.made(found))
        with pytest.raises(PermissionDenied, match="one by the other"):
            await there.made(found)


# Ended with what made it


async def chain(there: Desk, maker: Pass) -> list[str]:
    """Make a key, one by that, and one by that."""
    texts: list[str] = []
    for _ in range(3):
        texts.append(await there.made(maker))
        maker = await there.by_key(texts[-1])
    return texts


async def test_keys_end_with_the_revoked_key_that_they_come_of(tmp_path: Path) -> None:
    file = File(tmp_path)
    id, text = file.create()
    _, other = file.create()
    async with desk(tmp_path, file.way) as there:
        texts = await chain(there, await there.shown(("x-api-key", text)))
        found = [await there.by_key(one) for one in texts]
        sibling = await there.made(await there.shown(("x-api-key", other)))
        key_file.revoke(file.path, id)
        there.clock.passed += 1
        for one, before in zip(texts, found, strict=True):
            assert await there.reason(one) == "ended with its parent"
            # A stream that was open is not let go on.
            assert not there.way.still_holds(before)
        assert (await there.by_key(sibling)).caller.owner == "key:ada"
        states = [there.ring.state(key) for key in await there.ring.all(agent_of("key:ada"))]
        assert states == ["ended_with_parent"] * 3 + ["active"]


async def test_keys_end_with_a_key_in_the_middle_and_those_above_stay(tmp_path: Path) -> None:
    file = File(tmp_path)
    _, text = file.create()
    async with desk(tmp_path, file.way) as there:
        first, middle, last = await chain(there, await there.shown(("x-api-key", text)))
        await there.ring.revoke(agent_of("key:ada"), middle.split("_")[1])
        assert (await there.by_key(first)).caller.agent == "0190-a"
        assert "revoked" in await there.reason(middle)
        assert await there.reason(last) == "ended with its parent"


async def test_keys_end_with_a_key_that_was_rotated_away_deleted_or_given_other_rights(
    tmp_path: Path,
) -> None:
    file = File(tmp_path)
    (rotated, one), (deleted, two), (changed, three) = (file.create() for _ in range(3))
    async with desk(tmp_path, file.way) as there:
        keys = [
            await there.made(await there.shown(("x-api-key", text))) for text in (one, two, three)
        ]
        key_file.rotate(file.path, rotated, overlap=timedelta(hours=1), lifetime=None)
        there.clock.passed += 60
        for key in keys:
            await there.by_key(key)
        said = json.loads(file.path.read_text())
        said["keys"] = [key for key in said["keys"] if key["id"] != deleted]
        for key in said["keys"]:
            if key["id"] == changed:
                key["tenant"] = "acme"
        file.path.write_text(json.dumps(said))
        there.clock.passed += HOUR
        for key in keys:
            assert await there.reason(key) == "ended with its parent"


@pytest.mark.parametrize(
    "after",
    [
        "",
        '[alice]\ntoken = "another-0123456789abcdef"\n',
        f'[bob]\ntoken = "{ALICE}"\n',
        f'[alice]\ntoken = "{ALICE}"\ntenant = "acme"\n',
        f'[alice]\ntoken = "{ALICE}"\nscopes = ["tasks:read"]\n',
    ],
)
async def test_a_key_ends_with_the_token_that_made_it(tmp_path: Path, after: str) -> None:
    path = tmp_path / "tokens.toml"
    before = f'[alice]\ntoken = "{ALICE}"\n'

    def write(text: str) -> None:
        path.write_text(text)
        path.chmod(0o600)

    write(before)
    async with desk(tmp_path, lambda clock: BearerTokens(file=path, monotonic=clock.monotonic)) as (
        there
    ):
        maker = await there.shown(("authorization", f"Bearer {ALICE}"))
        key = await there.made(maker)
        assert (await there.by_key(key)).caller.owner == "token:alice"
        # A token that was chosen cannot be guessed from what the store has of it.
        (row,) = await there.ring.all(agent_of("token:alice"))
        assert maker.credential and maker.credential.mark not in (row.parent_mark.hex(), row.parent)
        write(after)
        there.clock.passed += 2
        assert await there.reason(key) == "ended with its parent"
        write(before)
        there.clock.passed += 2
        assert (await there.by_key(key)).caller.owner == "token:alice"


async def test_a_token_that_only_a_function_knows_makes_no_key(tmp_path: Path) -> None:
    async with desk(tmp_path, lambda _: BearerTokens(check=lambda text: Caller("ada"))) as there:
        with pytest.raises(PermissionDenied, match="told later"):
            await there.made(await there.shown(("authorization", f"Bearer {ALICE}")))


@pytest.mark.parametrize("jti", ["a-name", None])
async def test_a_key_ends_with_the_jwt_that_made_it_and_with_the_key_of_its_issuer(
    tmp_path: Path, jti: str | None
) -> None:
    file = tmp_path / "issuer.json"
    file.write_text(json.dumps(jwks("rsa", "ec")))

    def way(clock: SkippingClock) -> JwtAuthenticator:
        return JwtAuthenticator(
            issuer=ISSUER, audience=[AUDIENCE], key_file=file, now=clock.now, leeway=60.0
        )

    async with desk(tmp_path, way) as there:
        await there.ways[-1].start()
        ends = int(there.clock.now()) + 600
        claims = {"exp": ends, "iat": ends - 900, "nbf": ends - 900, "sub": "ada"}
        more = {} if jti is None else {"jti": jti}
        maker = await there.shown(("authorization", f"Bearer {token('rsa', **claims, **more)}"))
        key = await there.made(maker, days=30)
        found = await there.by_key(key)
        # The leeway is for clocks, and no part of the token's life.
        assert found.until == ends < maker.until
        assert found.credential is not None
        (parent,) = found.credential.ancestors
        assert parent.startswith(f"jwt:{ISSUER}#")
        assert parent.endswith("#a-name") is (jti is not None)
        file.write_text(json.dumps(jwks("ec")))
        again = way(there.clock)
        await again.start()
        there.way.others = [again]
        assert await there.reason(key) == "ended with its parent"


async def test_a_key_ends_with_the_certificate_that_made_it(tmp_path: Path) -> None:
    authority = Authority()
    ca, crl = tmp_path / "ca.pem", tmp_path / "revoked.crl"
    ca.write_bytes(authority.pem)
    crl.write_bytes(pem(authority.revoke(until=10 * DAY)))

    def way(clock: SkippingClock) -> ClientCertificates:
        return ClientCertificates(authorities=ca, crl=crl, now=clock.now, monotonic=clock.monotonic)

    async with desk(tmp_path, way) as there:
        await there.ways[-1].start()
        issued = authority.issue(uri("spiffe://example.com/ada"), until=DAY)
        maker = await there.shown(certificate=issued.der)
        key = await there.made(maker, days=30)
        found = await there.by_key(key)
        assert found.until <= issued.certificate.not_valid_after_utc.timestamp()
        assert found.caller.owner == "cert:spiffe://example.com/ada"
        crl.write_bytes(pem(authority.revoke(issued, until=10 * DAY)))
        there.clock.passed += 2
        assert await there.reason(key) == "ended with its parent"


async def test_a_key_ends_with_its_agent_and_with_the_way_in_that_made_it(tmp_path: Path) -> None:
    file = File(tmp_path)
    _, text = file.create()
    async with desk(tmp_path, file.way) as there:
        maker = await there.shown(("x-api-key", text))
        key, child = (await chain(there, maker))[:2]
        there.way.others = []
        assert await there.reason(key) == await there.reason(child) == "ended with its parent"
        there.way.others = recalling(there.ways)
        await there.by_key(child)
        store = there.ring._store
        await store.agents.remove("0190-a", 1)
        there.clock.passed += 1
        assert "revoked" in await there.reason(key) and "revoked" in await there.reason(child)
        # Nor does one begin that was asked for while the agent was removed.
        with pytest.raises(NoAgentAvailable):
            await there.made(maker)


async def test_other_processes_see_within_a_second_what_one_made_or_revoked(tmp_path: Path) -> None:
    file = File(tmp_path)
    _, text = file.create()
    store = SQLiteGatewayStore(tmp_path / "gateway.db", lease=1.0)
    async with desk(tmp_path, file.way) as one:
        await store.open()
        await store.prepare()
        try:
            two = Desk(store, one.clock, [file.way(one.clock)])
            await two.way.start()
            maker = await one.shown(("x-api-key", text))
            key = await one.made(maker)
            # Made a moment ago: not known here, so it is looked for.
            found = await two.by_key(key)
            await one.ring.revoke(agent_of("key:ada"), key.split("_")[1])
            one.clock.passed += 1
            assert not two.way.still_holds(found)
            assert "revoked" in await two.reason(key)
        finally:
            await store.close()


async def test_a_key_with_the_id_of_another_or_shown_twice_lets_nobody_in(tmp_path: Path) -> None:
    file = File(tmp_path)
    _, text = file.create()
    async with desk(tmp_path, file.way) as there:
        maker = await there.shown(("x-api-key", text))
        one, two = await there.made(maker), await there.made(maker)
        forged = one.replace(one.split("_")[1], two.split("_")[1])
        assert await there.reason(forged) == "wrong secret"
        assert "not shaped" in await there.reason(one + "0")
        with pytest.raises(CredentialRefused):
            await there.shown(("x-api-key", one), ("x-api-key", one))
        # In the shape of a key of a file it is none.
        with pytest.raises(CredentialRefused):
            await there.shown(("x-api-key", "dgm" + one[3:]))
