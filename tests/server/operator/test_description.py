"""The OpenAPI document says what the API does: every answer fits its schema."""

import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dragoman.server.operator.addresses import API
from dragoman.server.operator.api import TABLE, described
from tests.http.test_access_control import ALICE, BOSS
from tests.server.operator.operator_site import OperatorSite, operator_site
from tests.server.operator.test_system import given_up

PAGE = Path(__file__).parents[3] / "docs" / "operator-api.md"
READS = [row for row in TABLE.endpoints if row.verb == "GET" and not row.streams]


def check(row: Any, status: int, value: Any) -> None:
    """Hold an answer to its schema."""
    document = described()
    answers = document["paths"][row.path][row.verb.lower()]["responses"]
    assert str(status) in answers, (row.name, status, value)
    schema = answers[str(status)]["content"]["application/json"]["schema"]
    whole = {**schema, "components": document["components"]}
    problems = [error.message for error in Draft202012Validator(whole).iter_errors(value)]
    assert problems == [], row.name


async def thing(site: OperatorSite, row: Any) -> str:
    if "/inbox/" in row.path:
        return await site.made("x", ALICE, "order")
    return await site.made("3", ALICE, "count")


@pytest.mark.parametrize("row", READS, ids=[row.name for row in READS])
async def test_every_answer_fits_its_schema(row: Any, tmp_path: Any) -> None:
    async with operator_site(audit=str(tmp_path / "audit.jsonl"), push=False) as site:
        await given_up(site, 1)
        await site.made("x", ALICE, "order")
        await site.made("x", ALICE, "fail")
        path = row.path.removeprefix(API).replace("{id}", await thing(site, row))
        for token in (BOSS, ALICE):
            answer = await site.ask(path, token)
            if answer.status_code != 403:
                check(row, answer.status_code, answer.json())
        if "{id}" in row.path:
            missing = await site.ask(row.path.removeprefix(API).replace("{id}", "none"))
            assert missing.status_code == 404
            check(row, 404, missing.json())
        if row.query is not None and "limit" in row.query.__struct_fields__:
            refused = await site.ask(path, limit="many")
            assert refused.status_code == 400
            check(row, 400, refused.json())


def test_every_endpoint_is_described_with_a_name_and_a_sentence() -> None:
    document = described()
    names: list[str] = []
    for row in TABLE.endpoints:
        said = document["paths"][row.path][row.verb.lower()]
        names.append(said["operationId"])
        assert said["summary"] and "\n" not in said["summary"], row.name
        assert {"400", "429", "503"} <= said["responses"].keys()
    assert len(names) == len(set(names))


def test_the_page_of_the_api_has_every_endpoint_and_no_other() -> None:
    told = set(re.findall(r"`(GET|POST|DELETE|PATCH|PUT) (/[^`?\s]*)", PAGE.read_text()))
    told = {(verb, path.removeprefix(API)) for verb, path in told}
    assert told == {(row.verb, row.path.removeprefix(API)) for row in TABLE.endpoints}
