"""What commands use of a gateway's state while the gateway runs."""

from harness.waiting import eventually

from dragoman.errors import ConfigError
from dragoman.security.vault import Vault, new_key
from dragoman.stores.postgres import Addresses
from dragoman.stores.postgres.gateway import PostgresGatewayStore
from dragoman.stores.postgres.operating.bookkeeping import (
    accounting_database,
    keys_in_database,
    revoke_in_database,
    secret_of,
)
from dragoman.testing.promises.agent_keys import key
from dragoman.testing.promises.agents import agent, stored


async def test_keys_of_agents_are_listed_and_revoked_beside_a_gateway(database: str) -> None:
    addresses = Addresses(database)
    store = PostgresGatewayStore(addresses)
    await store.open()
    try:
        await stored(store, agent("a"))
        made = [key("2", made_at=5), key("1", made_at=9)]
        for one in reversed(made):
            await store.agent_keys.put(one, most=9)
        assert await keys_in_database(addresses) == made
        await revoke_in_database(addresses, "2", 77)
        assert [one.revoked_at for one in await keys_in_database(addresses)] == [77, None]

        async def is_known() -> bool:
            (first,) = [one for one in store.agent_keys.changed(-1) if one.id == "2"]
            return first.revoked_at == 77

        # The gateway is not told, and looks by itself.
        await eventually(is_known)
        async with accounting_database(addresses) as accounting:
            assert (await accounting.registered()).keys() == {"a"}
            assert (await accounting.ledger.verify("")).is_whole
    finally:
        await store.close()


async def test_the_secret_of_a_store_is_that_of_its_servers(database: str) -> None:
    vault = Vault([new_key()])
    store = PostgresGatewayStore(Addresses(database), sealing=vault)
    await store.open()
    try:
        await store.prepare()
        assert await secret_of(Addresses(database), vault) == store.secret
    finally:
        await store.close()
    try:
        await secret_of(Addresses(database), Vault([new_key()]))
    except ConfigError as error:
        assert "is sealed with key" in str(error)
    else:
        raise AssertionError("another key opens nothing")
