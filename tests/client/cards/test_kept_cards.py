"""A card from the cache is not the last word: it is asked for anew before it leads to a refusal."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.waiting import within

from dragoman.client.agent_connection import AgentConnection, Options
from dragoman.client.cards.cards import Cards
from dragoman.client.cards.references import parse
from dragoman.client.credentials.credentials import ApiKey, Bearer, Credential
from dragoman.errors import CredentialsMissing, Unauthenticated
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.model.task import TaskState
from tests.client.cards import web
from tests.client.stub import URL, Asked, Said, Stub, got, stream, task

SCHEMES: dict[str, Any] = {
    "apiKey": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
    "bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}},
}
PASSES = {"apiKey": ("x-api-key", "key-1"), "bearer": ("authorization", "Bearer token-1")}
KEY, TOKEN = ApiKey("key-1"), Bearer("token-1")


class Stored(ApiKey):
    """A key that nobody expects to be sent: it is left from before."""

    @property
    def is_stored(self) -> bool:
        return True


LEFT = Stored("key-1")
READ = ops.GetTask(task_id=TaskId("t-1"))


class Guarded(Stub):
    """An agent whose way in changes; `auth` names it, and None lets everybody in."""

    def __init__(self, auth: str | None) -> None:
        super().__init__(self._said)
        self.auth = auth
        # What the card says, where that is not the truth.
        self.shown: str | None = ""
        self.has_card = True
        self.cards = Cards()

    def _said(self, asked: Asked) -> Said:
        if "well-known" in asked.url:
            if not self.has_card:
                return Said(500)
            return Said(pieces=[self._card()])
        if self.auth is not None:
            name, value = PASSES[self.auth]
            if asked.headers.get(name) != value:
                return Said(401, {"www-authenticate": "Bearer"})
        done = task(TaskState.COMPLETED)
        return stream(asked, done) if asked.method == "SubscribeToTask" else got(asked, done)

    def _card(self) -> bytes:
        auth = self.auth if self.shown == "" else self.shown
        plain: dict[str, Any] = {
            "name": "Guarded",
            "description": "Lets some in.",
            "version": "1",
            "supportedInterfaces": [
                {"url": URL, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            ],
            "capabilities": {},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [],
        }
        if auth is not None:
            plain["securitySchemes"] = {auth: SCHEMES[auth]}
            plain["securityRequirements"] = [{"schemes": {auth: {"list": []}}}]
        return msgspec.json.encode(plain)

    def line(self, *credentials: Credential) -> AgentConnection:
        options = Options(credentials=credentials, backoff=0.001)
        return AgentConnection(URL, self, self.cards, options)

    @property
    def looks(self) -> int:
        return sum("well-known" in asked.url for asked in self.requests)

    @property
    def calls(self) -> int:
        return len(self.requests) - self.looks


async def known(auth: str | None) -> Guarded:
    """An agent whose card is kept, as an earlier run left it."""
    agent = Guarded(auth)
    await within(agent.line().look())
    assert agent.looks == 1
    return agent


async def test_a_kept_card_that_asks_for_another_credential_is_asked_for_anew() -> None:
    agent = await known("bearer")
    agent.auth = "apiKey"
    await within(agent.line(KEY).answer(READ))
    assert (agent.looks, agent.calls) == (2, 1)


async def test_what_is_missing_is_what_the_agent_asks_for_today() -> None:
    agent = await known("bearer")
    agent.auth = "apiKey"
    with pytest.raises(CredentialsMissing) as missing:
        await within(agent.line().answer(READ))
    assert missing.value.facts["kinds"] == "apiKey"
    assert (agent.looks, agent.calls) == (2, 0), "asked once more, and no more than once"


async def test_a_kept_card_that_fits_is_not_asked_for_again() -> None:
    agent = await known("bearer")
    await within(agent.line(TOKEN).answer(READ))
    assert (agent.looks, agent.calls) == (1, 1)


async def test_a_kept_card_that_takes_no_given_credential_is_asked_for_anew() -> None:
    agent = await known(None)
    agent.auth = "apiKey"
    line = agent.line(KEY)
    await within(line.open())
    assert not line.unused, "nobody is told that the key goes nowhere"
    await within(line.answer(READ))
    assert (agent.looks, agent.calls) == (2, 1)


@pytest.mark.parametrize(("before", "given"), [(None, [LEFT]), ("bearer", [TOKEN, LEFT])])
async def test_after_a_401_a_kept_card_is_read_anew_and_the_call_made_once_more(
    before: str | None, given: list[Credential]
) -> None:
    agent = await known(before)
    agent.auth = "apiKey"
    line = agent.line(*given)
    await within(line.answer(READ))
    assert (agent.looks, agent.calls) == (2, 2)
    await within(line.answer(READ))
    assert (agent.looks, agent.calls) == (2, 3), "what was found holds for later calls"


async def test_a_stream_that_meets_a_401_reads_a_kept_card_anew_as_well() -> None:
    agent = await known(None)
    agent.auth = "apiKey"

    async def followed() -> int:
        subscribe = ops.SubscribeToTask(task_id=TaskId("t-1"))
        return len([batch async for batch in agent.line(LEFT).follow(subscribe)])

    assert await within(followed()) == 1
    assert (agent.looks, agent.calls) == (2, 2)


async def test_after_a_401_the_missing_credential_is_the_one_the_card_names_today() -> None:
    agent = await known(None)
    agent.auth = "apiKey"
    line = agent.line()
    for calls in (1, 2):
        with pytest.raises(CredentialsMissing) as missing:
            await within(line.answer(READ))
        assert missing.value.facts["kinds"] == "apiKey"
        assert (agent.looks, agent.calls) == (1 + calls, calls), "once for each call"


async def test_a_401_is_not_tried_again_by_a_card_that_is_as_it_was() -> None:
    agent = await known("bearer")
    with pytest.raises(Unauthenticated):
        await within(agent.line(Bearer("wrong-token")).answer(READ))
    assert (agent.looks, agent.calls) == (2, 1)


async def test_an_agent_that_refuses_whatever_its_card_says_is_not_asked_without_end() -> None:
    agent = await known(None)
    agent.auth, agent.shown = "bearer", "apiKey"
    with pytest.raises(Unauthenticated):
        await within(agent.line(LEFT).answer(READ))
    assert (agent.looks, agent.calls) == (2, 2)


async def test_a_card_that_was_read_in_this_run_is_believed() -> None:
    agent = Guarded("apiKey")
    agent.shown = None
    with pytest.raises(CredentialsMissing):
        await within(agent.line(KEY).answer(READ))
    assert (agent.looks, agent.calls) == (1, 1)


async def test_a_401_is_told_also_where_the_card_cannot_be_read_again() -> None:
    agent = await known(None)
    agent.auth, agent.has_card = "apiKey", False
    with pytest.raises(CredentialsMissing) as missing:
        await within(agent.line().answer(READ))
    assert missing.value.code == 401


async def test_a_card_that_an_earlier_run_left_on_disk_is_a_kept_one(tmp_path: Path) -> None:
    agent = Guarded("bearer")
    agent.cards = Cards(folder=tmp_path / "cards")
    await within(agent.line().look())
    agent.auth = "apiKey"
    agent.cards = Cards(folder=tmp_path / "cards")
    await within(agent.line(KEY).answer(READ))
    assert (agent.looks, agent.calls) == (2, 1)
    agent.cards = Cards(folder=tmp_path / "cards")
    await within(agent.line(KEY).answer(READ))
    assert (agent.looks, agent.calls) == (2, 2), "what was read anew is kept in its place"


async def test_the_card_of_an_agent_on_this_machine_is_validated_each_time_and_not_left_on_disk(
    tmp_path: Path,
) -> None:
    home = "http://localhost:9/.well-known/agent-card.json"
    headers = {"cache-control": "max-age=3600", "etag": '"1"'}

    def page(asked: web.Asked) -> web.Page:
        if asked.headers.get("if-none-match") == headers["etag"]:
            return web.Page(304, dict(headers))
        return web.Page(headers=dict(headers), body=msgspec.json.encode(card))

    card = dict(web.CARD)
    network, cards = web.Web({home: page}), Cards(folder=tmp_path)
    for name, kept in (("Weather", False), ("Weather", False), ("Climate", False)):
        if name != card["name"]:
            card["name"], headers["etag"] = name, '"2"'
        found = await cards.fetch(network, parse("localhost:9"))  # type: ignore[arg-type]  # as Http
        assert (found.card.name, found.is_kept) == (name, kept)
    assert len(network.asked) == 3 and "if-none-match" in network.asked[1].headers
    assert not list(tmp_path.iterdir())
