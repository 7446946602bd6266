"""The API's table, its envelope, and the document that is made of them."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, UnsetType

from dragoman import errors
from dragoman.errors import A2AError, InvalidParams
from dragoman.gateway.api.api import TABLE, document, table
from dragoman.gateway.api.envelope import STATUSES, ApiRefused, code_of, failure
from dragoman.gateway.api.openapi import codes_of
from dragoman.gateway.app import gateway_of
from dragoman.http.routes import Access
from dragoman.server.endpoint_paths import FoundEndpoint, MethodNotAllowed, read_query
from tests.gateway.api.api_site import GatewaySite, gateway, owners


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewaySite]:
    """A gateway that several tests share."""
    folder = tmp_path_factory.mktemp("gateway")
    async with gateway(folder, max_body_bytes=20_000) as found:
        yield found


# The envelope


def classes(root: type[A2AError]) -> list[type[A2AError]]:
    """Return the tree of errors; what else derives from one is not for peers."""
    below = (one for child in root.__subclasses__() for one in classes(child))
    return [one for one in (root, *below) if one.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", classes(A2AError), ids=lambda kind: kind.__name__)
def test_every_error_has_a_code_and_a_status(kind: type[A2AError]) -> None:
    status, body = failure(kind())
    assert body.error.code == code_of(kind()) and STATUSES[body.error.code] == status
    ours = {A2AError, errors.InternalError, errors.PushNotSupported}
    unlikely = (errors.ExtensionRequired, errors.VersionNotSupported)
    unlikely = (*unlikely, errors.ExtendedCardNotConfigured)
    assert (status == 500) == (kind in ours or issubclass(kind, unlikely)), "a code is missing"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("AGENT_NOT_FOUND", 404),
        ("AGENT_OFFLINE", 503),
        ("TASK_NOT_FOUND", 404),
        ("TASK_ALREADY_ASSIGNED", 409),
        ("TASK_CANCELLED", 408),
        ("INSUFFICIENT_CREDITS", 402),
        ("TRUST_THRESHOLD_NOT_MET", 403),
        ("RATE_LIMIT_EXCEEDED", 429),
        ("UNAUTHORIZED", 401),
        ("FORBIDDEN", 403),
        ("VALIDATION_ERROR", 400),
        ("INTERNAL_ERROR", 500),
        ("PROTOCOL_ERROR", 502),
    ],
)
def test_the_codes_have_the_statuses_that_callers_know(code: Any, status: int) -> None:
    assert failure(ApiRefused(code, "no"))[0] == status


def test_who_asks_too_often_is_told_when_to_come_back() -> None:
    status, body = failure(errors.RateLimited(retry_after=17))
    assert status == 429
    assert body.error.code == "RATE_LIMIT_EXCEEDED"
    assert body.error.details == {"retryAfter": 17}


def test_what_is_wrong_with_a_field_names_it() -> None:
    _, body = failure(InvalidParams("is too long", field="title"))
    assert body.error.message == "title: is too long"
    assert body.error.details == {"field": "title"}


# The table


def test_no_two_rows_have_one_place_or_one_name() -> None:
    rows = TABLE.endpoints
    assert len({(row.verb, row.path) for row in rows}) == len(rows)
    assert len({row.name for row in rows}) == len(rows)


def test_every_row_is_found_at_its_own_path() -> None:
    for row in TABLE.endpoints:
        path = row.path.replace("{", "").replace("}", "")
        found = TABLE.find(row.verb, path)
        assert isinstance(found, FoundEndpoint) and found.endpoint is row
        other = TABLE.find("BREW", path)
        assert isinstance(other, MethodNotAllowed) and row.verb in other.allow


@pytest.mark.parametrize(
    "path",
    ["/api/v1", "/api/v1/", "/api/v1/agents/", "/api/v1/agents//heartbeat", "/api/v1/a/b/c/d/e/f"],
)
def test_what_is_in_no_row_is_found_nowhere(path: str) -> None:
    assert TABLE.find("GET", path) is None


def test_only_health_the_document_and_the_payment_webhook_are_open_to_everybody() -> None:
    public = {row.path for row in TABLE.endpoints if row.access is not Access.CALLER}
    assert public == {
        "/health",
        "/api/v1/health",
        "/api/v1/openapi.json",
        "/api/v1/billing/webhook",
    }


def test_every_row_for_callers_says_what_a_key_has_to_be_for() -> None:
    assert [
        row.name for row in TABLE.endpoints if row.access is Access.CALLER and not row.scope
    ] == []


class _Query(msgspec.Struct, frozen=True):
    number: Annotated[int, Meta(ge=1, le=9)] = 5
    amount: Annotated[float, Meta(ge=0)] | UnsetType = msgspec.UNSET
    word: str = ""


def test_a_query_is_read_by_its_types() -> None:
    read = read_query(_Query, b"number=7&amount=1.5&word=12&other=x")
    assert (read.number, read.amount, read.word) == (7, 1.5, "12")
    assert read_query(_Query, b"") == _Query()
    assert read_query(_Query, b"word=a%20b+c").word == "a b c"


@pytest.mark.parametrize(
    "text",
    [
        b"number=0",
        b"number=10",
        b"number=",
        b"number=x",
        b"number=1e0",
        b"number=%D9%A1",
        b"number=1.5",
        b"number=null",
        b"amount=-1",
        b"amount=nan",
        b"amount=inf",
        b"number=1&number=1",
        b"&".join(b"x%d=1" % n for n in range(60)),
    ],
)
def test_a_query_that_says_something_else_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidParams):
        read_query(_Query, text)


# The document

DOCUMENT = document(sells_credits=True)


def test_the_document_has_every_row_with_all_it_may_answer() -> None:
    for row in TABLE.endpoints:
        described = DOCUMENT["paths"][row.path][row.verb.lower()]
        assert described["operationId"] == row.name
        known = {str(row.status), *(str(STATUSES[code]) for code in codes_of(row))}
        assert set(described["responses"]) - {"414"} == known
        assert ("requestBody" in described) == (row.body is not None or row.is_raw)
    assert sum(len(path) for path in DOCUMENT["paths"].values()) == len(TABLE.endpoints)


def test_everything_the_document_refers_to_is_in_it() -> None:
    text = json.dumps(DOCUMENT)
    named = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named == set(DOCUMENT["components"]["schemas"])


def test_where_credits_are_not_sold_nothing_hears_of_payments() -> None:
    served = table(sells_credits=False)
    webhook = "/api/v1/billing/webhook"
    assert {row.path for row in TABLE.endpoints} - {row.path for row in served.endpoints} == {
        webhook
    }
    assert served.find("POST", webhook) is None
    assert webhook in DOCUMENT["paths"]
    assert webhook not in document(sells_credits=False)["paths"]


# Served


async def test_health_and_the_document_are_served_to_everybody(tmp_path: Path) -> None:
    async with owners(tmp_path) as (site, _, _):
        for path in ("/health", "/api/v1/health"):
            response = await site.http.get(path)
            assert response.status_code == 200
            told = response.json()
            assert set(told) == {"status", "service", "version", "timestamp"}
            assert told["status"] == "ok"
        response = await site.http.get("/api/v1/openapi.json")
        assert response.status_code == 200
        assert response.json() == DOCUMENT
        for path in ("/api/v1/tasks", "/api/v1/nothing", "/api/dashboard/tasks"):
            assert (await site.http.get(path)).status_code == 401


async def test_who_asks_too_often_is_refused_and_told_for_how_long(tmp_path: Path) -> None:
    async with owners(tmp_path, rate_limit="3/60s") as (site, _, buyer):
        refused = [await site.raw("GET", "/tasks", headers=buyer) for _ in range(4)][-1]
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1


async def test_too_many_tasks_in_a_day_are_refused_in_the_words_of_the_api(
    tmp_path: Path,
) -> None:
    async with owners(tmp_path, quota="1/86400s") as (site, _, buyer):
        body = {"assignedAgentId": site.agent, "title": "a task"}
        await site.ask("POST", "/tasks", body, status=202, headers=buyer)
        refused = await site.raw("POST", "/tasks", body, headers=buyer)
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert error["code"] == "RATE_LIMIT_EXCEEDED"
        assert error["details"] == {"retryAfter": int(refused.headers["retry-after"])}


async def test_a_path_that_is_not_there_is_a_404(site: GatewaySite) -> None:
    error = await site.ask("GET", "/nothing/here", status=404)
    assert error["code"] == "NOT_FOUND"


async def test_another_verb_is_a_405_that_says_which(site: GatewaySite) -> None:
    response = await site.raw("PUT", "/tasks")
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, POST"
    assert response.json()["error"]["code"] == "METHOD_NOT_ALLOWED"
    response = await site.http.get("/api/dashboard/tasks")
    assert response.status_code == 405 and response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", {}, 400, "VALIDATION_ERROR"),
        (b"", {}, 400, "VALIDATION_ERROR"),
        (b"[]", {}, 400, "VALIDATION_ERROR"),
        (b"null", {}, 400, "VALIDATION_ERROR"),
        (b'{"title": "a", "title": "b"}', {}, 400, "VALIDATION_ERROR"),
        (b'{"title": "\\ud800"}', {}, 400, "VALIDATION_ERROR"),
        (b"a=b", {"content-type": "application/x-www-form-urlencoded"}, 415, None),
        (b"{}", {"content-encoding": "gzip"}, 415, None),
        (b" " * 20_001, {}, 413, "PAYLOAD_TOO_LARGE"),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(
    site: GatewaySite, content: bytes, headers: dict[str, str], status: int, code: str | None
) -> None:
    sent = {"content-type": "application/json"} | headers
    response = await site.http.post("/api/v1/tasks", content=content, headers=sent)
    assert response.status_code == status
    assert response.json()["error"]["code"] == (code or "UNSUPPORTED_MEDIA_TYPE")


async def test_what_goes_wrong_inside_is_an_incident_and_no_more(
    site: GatewaySite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a secret of ours")

    monkeypatch.setattr(gateway_of(site.app).registry, "search", broken)
    error = await site.ask("GET", "/agents", status=500)
    assert error["code"] == "INTERNAL_ERROR"
    assert error["details"]["incident"] in caplog.text
    assert "secret" not in json.dumps(error)
