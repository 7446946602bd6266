"""What agents are shown when they are called: kept from view."""

import logging

import apsw
import msgspec
import pytest

from dragoman.client.credentials.credentials import ApiKey, Bearer, choose
from dragoman.client.credentials.origins import Origins
from dragoman.config import Settings, StoreSettings
from dragoman.egress.egress import Egress
from dragoman.errors import InvalidParams
from dragoman.gateway.registry.registration import AgentChanges, Registration, Secret, card_of
from dragoman.gateway.registry.registry import Registry
from dragoman.model.identity import Principal
from dragoman.security.vault import key_file_of, read_key_file, vault_of, write_key_file
from dragoman.stores.sqlite.gateway import SQLiteGatewayStore
from dragoman.stores.sqlite.rotation import rotate
from tests.gateway.registry.registries import Desk

pytestmark = pytest.mark.anyio
DEAD = "http://127.0.0.1:9/"
CANARY = "c4nary-0123456789"


async def secretive(there: Desk, **said: object) -> Registry:
    registry = await there.registry()
    secret = Secret(kind="bearer", value=CANARY)
    values = {"url": DEAD, "name": "Bank", "credential": secret, **said}
    await registry.register(Registration(**values), Principal.read("alice"))  # type: ignore[arg-type]
    return registry


def on_disk(there: Desk) -> bytes:
    folder = there.path.parent
    return b"".join(path.read_bytes() for path in folder.glob(f"{there.path.name}*"))


async def test_a_credential_is_given_back_and_shown_nowhere(
    there: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    registry = await secretive(there)
    assert await registry.credential("bank") == Bearer(CANARY)
    agent = registry.all()[0]
    assert agent.credential == "bearer"
    shown = [repr(agent), str(there.audit.all), caplog.text, msgspec.json.encode(agent).decode()]
    shown += [repr(Secret(kind="bearer", value=CANARY)), repr(Registration(url="x"))]
    shown += [repr(Registration(url="x", credential=Secret(kind="bearer", value=CANARY)))]
    assert CANARY not in "".join(shown)
    assert CANARY.encode() not in on_disk(there)


async def test_a_credential_survives_a_restart_and_a_change_of_key(there: Desk) -> None:
    first = await secretive(there)
    await first.close()
    file = key_file_of(there.path)
    vault = vault_of(Settings(stores=StoreSettings(location=str(there.path))))
    key = vault.add()
    done = rotate(there.path, vault, key)
    assert done.damaged == 0 and done.values >= 1
    # Only the later key is left.
    write_key_file(file, read_key_file(file)[:1])
    second = await there.registry()
    assert await second.credential("bank") == Bearer(CANARY)


async def test_what_an_unsealed_file_had_is_sealed_when_there_is_a_key(there: Desk) -> None:
    store = SQLiteGatewayStore(there.path)
    await store.open()
    async with Egress(allow_private=True) as http:
        registry = Registry(store, http, watches=False)
        await registry.open()
        secret = Secret(kind="bearer", value=CANARY)
        await registry.register(Registration(url=DEAD, name="Bank", credential=secret))
        await registry.close()
    await store.close()
    assert CANARY.encode() in on_disk(there)
    second = await there.registry()
    assert await second.credential("bank") == Bearer(CANARY)
    assert CANARY.encode() not in on_disk(there)


async def test_a_credential_goes_to_another_address_only_if_it_is_said_anew(there: Desk) -> None:
    registry = await secretive(there)
    moved = AgentChanges(url="http://127.0.0.1:10/", replicas=[DEAD])
    with pytest.raises(InvalidParams, match="said anew"):
        # Whoever may change an agent need not be who gave it a credential.
        await registry.update("bank", moved, Principal.read("alice"))
    anew = msgspec.structs.replace(moved, credential=Secret(kind="bearer", value=CANARY))
    await registry.update("bank", anew, Principal.read("alice"))
    assert await registry.credential("bank") == Bearer(CANARY)
    await registry.update("bank", AgentChanges(replicas=[]), Principal.read("alice"))
    assert await registry.credential("bank") == Bearer(CANARY), "it goes to fewer places"
    other = Secret(kind="header", value="Token x", header="Authorization")
    after = await registry.update("bank", AgentChanges(credential=other), Principal.read("alice"))
    assert (after.credential, after.credential_header) == ("header", "Authorization")
    assert await registry.credential("bank") == ApiKey("Token x")
    await registry.update("bank", AgentChanges(credential=None), Principal.read("alice"))
    assert await registry.credential("bank") is None and registry.all()[0].credential == ""


async def test_a_credential_is_gone_with_its_agent(there: Desk) -> None:
    registry = await secretive(there)
    await registry.remove("bank", Principal.read("alice"))
    assert await registry.credential("bank") is None
    connection = apsw.Connection(str(there.path))
    assert connection.execute("SELECT count(*) FROM agent_credentials").fetchall() == [(0,)]
    connection.close()


@pytest.mark.parametrize("places", [["agents.body"], ["agents.body", "agent_credentials.shown"]])
async def test_who_writes_the_file_without_its_key_cannot_send_a_credential_elsewhere(
    there: Desk, places: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = await secretive(there)
    await first.close()
    connection = apsw.Connection(str(there.path))
    for place in places:
        table, column = place.split(".")
        connection.execute(
            f"UPDATE {table} SET {column} = CAST(replace(CAST({column} AS TEXT), ?, ?) AS BLOB)",
            (DEAD, "https://evil.example.com/"),
        )
    connection.close()
    second = await there.registry()
    assert second.all()[0].url == "https://evil.example.com/"
    assert await second.credential("bank") is None
    assert "set it anew" in caplog.text and CANARY not in caplog.text


KINDS = [
    (Secret(kind="bearer", value="t0ken-1"), {"authorization": "Bearer t0ken-1"}),
    (Secret(kind="apiKey", value="key-1"), {"x-api-key": "key-1"}),
    (Secret(kind="apiKey", value="key-1", header="X-Mine"), {"x-mine": "key-1"}),
    (
        Secret(kind="header", value="Token 1", header="Authorization"),
        {"authorization": "Token 1"},
    ),
]


@pytest.mark.parametrize(("secret", "headers"), KINDS)
@pytest.mark.parametrize("has_card", [False, True])
async def test_each_kind_is_shown_as_its_owner_meant(
    there: Desk, secret: Secret, headers: dict[str, str], has_card: bool
) -> None:
    peer, registry = await there.peer(**({"name": "Bank"} if has_card else {})), None
    registry = await there.registry()
    said = Registration(url=peer.url, name="Bank", credential=secret)
    agent = await registry.register(said)
    credential = await registry.credential(agent.id)
    assert credential is not None and (agent.card is not None) == has_card
    chosen = choose(card_of(agent), [credential], peer.url)
    async with Egress() as http:
        attached = await chosen.attach(peer.url, http, Origins([peer.url]))
    assert attached.headers == headers


async def test_a_card_that_asks_for_something_itself_says_where_it_goes(there: Desk) -> None:
    peer, registry = await there.peer(), await there.registry()
    scheme = {"k": {"apiKeySecurityScheme": {"location": "query", "name": "key"}}}
    needs = [{"schemes": {"k": {"list": []}}}]
    peer.shows(peer.card(securitySchemes=scheme, securityRequirements=needs))
    agent = await registry.register(
        Registration(url=peer.url, credential=Secret(kind="apiKey", value="k1"))
    )
    credential = await registry.credential("maps")
    assert credential is not None
    chosen = choose(card_of(agent), [credential], peer.url)
    async with Egress() as http:
        attached = await chosen.attach(peer.url, http, Origins([peer.url]))
    assert attached.query == {"key": "k1"} and not attached.headers
