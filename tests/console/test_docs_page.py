"""The page that draws the APIs: every route of every document, each to be tried."""

import html
import re

import httpx

from dragoman.server.operator.api import TABLE
from tests.console.sites import Visitor, console
from tests.console.test_sessions import echo


def text_of(answer: httpx.Response) -> str:
    """Return what a page says, without its markup."""
    return html.unescape(re.sub(r"<[^>]+>", "", answer.text))


async def test_people_who_look_for_docs_are_led_to_them() -> None:
    async with console(echo()) as site:
        answer = await site.http.get("/docs")
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/docs")
        assert (await site.http.post("/docs")).status_code == 405
        assert (await site.http.get("/agents/echo/docs")).status_code == 404


async def test_every_route_is_drawn_with_its_fields() -> None:
    async with console(echo()) as site:
        visitor = Visitor(site.http)
        everything = text_of(await visitor.get("/console/docs"))
        for row in TABLE.endpoints:
            # What is between backticks is drawn as code.
            assert row.path in everything and row.summary.replace("`", "") in everything
            page = await visitor.get(f"/console/docs?op={row.name}")
            assert page.status_code == 200
            shown = text_of(page)
            assert f"{row.verb} {row.path}" in shown
            if row.query is not None:
                for name in row.query.__struct_encode_fields__:
                    assert name in shown
            # The objects that it needs, and no others.
            linked = set(re.findall(r'href="#(\w+)"', page.text)) - {"main"}
            assert linked <= set(re.findall(r'<details id="(\w+)"', page.text)), row.name
            assert ("AuditChain" in shown) == (row.name == "verify_audit"), row.name
        assert (await visitor.get("/console/docs?op=nothing")).status_code == 404
        assert (await visitor.get("/console/docs?api=gateway")).status_code == 404


async def test_a_route_is_tried_with_its_parameters_and_its_body() -> None:
    async with console(echo()) as site:
        visitor = Visitor(site.http)
        task = (await site.send("hello"))["id"]
        token = await visitor.token("/console/docs?op=find_tasks")

        async def tried(name: str, **fields: str) -> str:
            given = {f"{name}:/{field}": value for field, value in fields.items()}
            answer = await visitor.submit(f"/console/docs?op={name}", token=token, **given)
            return text_of(answer)

        found = await tried("find_tasks", text="hello", limit="3")
        assert "status 200" in found and task in found and "limit=3&text=hello" in found
        assert "status 200" in await tried("view_task", id=task)
        assert "status 404" in await tried("view_task", id="../../me?x")
        assert "at most 200" in await tried("find_tasks", limit="900")
        answered = await tried("answer_request", **{"body/id": "none", "body/value": "1"})
        assert "status 404" in answered and "-X POST" in answered
        # A stream has no end: only the command is shown.
        assert "curl -N" in await tried("follow_changes")


async def test_a_form_of_another_page_is_not_sent() -> None:
    async with console(echo()) as site:
        visitor = Visitor(site.http)
        token = await visitor.token("/console/docs?op=find_tasks")
        for more in ({"token": "0" * 64}, {"token": token, "origin": "http://evil.example"}):
            refused = await visitor.submit("/console/docs?op=find_tasks", **more)
            assert refused.status_code == 403
