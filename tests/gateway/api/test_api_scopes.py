"""What the key of an agent has to be for: the table, the document and the server say the same."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.waiting import eventually

from dragoman.gateway.api.api import TABLE
from dragoman.gateway.api.table import Endpoint
from dragoman.http.routes import Access
from dragoman.model.identity import Caller
from dragoman.security.keys import key_file
from dragoman.security.keys.key_scopes import SCOPES, allows
from tests.gateway.api.api_site import GatewaySite, owners

DOCUMENT = Path(__file__).parents[3] / "docs" / "gateway-api.md"
ROW = re.compile(r"^\| `(?P<verb>[A-Z]+) (?P<path>\S+)` \| .* \| (?P<scope>\S+) \| \d+ \|$", re.M)
# What only a key for everything opens, as the prose above the table says.
ONLY_ALL = re.compile(
    r"/api-keys|^/api/v1/(billing|disputes|rollouts|triggers|workflows)|/(rate|dispute|refund)$|^/api/v1/tasks/\{id\}/accept$"
)
CALLED = [row for row in TABLE.endpoints if row.access is Access.CALLER]
PLAIN = frozenset(SCOPES - {"*"})


def keyed_with(scopes: frozenset[str]) -> Caller:
    return Caller("ada", agent="agent", key_scopes=scopes)


def named(row: Endpoint) -> str:
    return f"{row.verb} {row.path}"


def documented() -> dict[str, str]:
    """Return the scope of each endpoint as the document has it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return {f"{row['verb']} {row['path']}": row["scope"].strip("`") for row in ROW.finditer(text)}


@pytest.mark.parametrize("row", TABLE.endpoints, ids=named)
def test_an_endpoint_asks_for_the_scope_that_is_documented(row: Endpoint) -> None:
    said = documented()[named(row)]
    if row.access is not Access.CALLER:
        assert said == "none"
        return
    assert (said == "*") == (not allows(keyed_with(PLAIN), row.scope))
    if said != "*":
        assert allows(keyed_with(frozenset({said})), row.scope)
        assert not allows(keyed_with(PLAIN - {said}), row.scope)


@pytest.mark.parametrize("row", CALLED, ids=named)
def test_what_the_prose_closes_is_closed_to_all_but_keys_for_everything(row: Endpoint) -> None:
    assert (documented()[named(row)] == "*") == (ONLY_ALL.search(row.path) is not None)


def test_the_prose_names_the_scopes_there_are() -> None:
    prose = DOCUMENT.read_text(encoding="utf-8").partition("<!-- begin")[0]
    assert set(re.findall(r"`([a-z]+:[a-z]+)`", prose)) == PLAIN


@pytest.fixture(scope="module")
async def keyed(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[GatewaySite, dict[str, str]]]:
    """A gateway that knows its callers, and a key of its agent with every scope but `*`."""
    folder = tmp_path_factory.mktemp("gateway")
    keys = folder / "keys.json"
    key_file.create(keys, "somebody", scopes=[], tenant=None, lifetime=None)
    async with owners(folder, auth="bearer, api-key", keys=str(keys)) as (site, seller, _):
        body = {"name": "many scopes", "scopes": sorted(PLAIN)}
        path = f"/agents/{site.agent}/api-keys"
        made = await site.ask("POST", path, body, status=201, headers=seller)
        shown = {"x-api-key": made["key"]}

        async def is_known() -> bool:
            # A server looks at its keys from time to time.
            return (await site.raw("GET", "/tasks", headers=shown)).status_code != 401

        await eventually(is_known)
        yield site, shown


@pytest.mark.parametrize("row", [row for row in CALLED if ONLY_ALL.search(row.path)], ids=named)
async def test_a_key_with_every_other_scope_is_refused(
    keyed: tuple[GatewaySite, dict[str, str]], row: Endpoint
) -> None:
    site, shown = keyed
    path = row.path.removeprefix("/api/v1").replace("{id}", site.agent)
    path = re.sub(r"\{\w+\}", "some", path)
    refused = await site.ask(row.verb, path, status=403, headers=shown)
    assert refused["code"] == "FORBIDDEN" and refused["message"] == "The key is not for this"
