"""Who gets in, how a session begins and ends, and which forms are taken."""

import json
from pathlib import Path

import httpx
import pytest
from harness.commands import invoke
from harness.serving import client, hosting, message
from harness.waiting import eventually

from dragoman.config import load_settings
from dragoman.console.part import ConsolePart
from dragoman.errors import StoreUnavailable
from dragoman.gateway.app import gateway_app
from tests.console.sites import Visitor, console, echo

_ALICE = "alice-token-0123456789abc"
TOKENS = """
[operator]
token = "operator-token-0123456789"
scopes = ["dragoman:operator"]

[alice]
token = "alice-token-0123456789abc"
"""


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS)
    file.chmod(0o600)
    return str(file)


async def test_a_browser_that_opens_the_root_is_led_to_the_console() -> None:
    async with console(echo()) as site:
        answer = await site.http.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/console")


async def test_a_program_gets_at_the_root_what_it_got_before() -> None:
    async with console(echo()) as site:
        answer = await site.http.get("/")
        assert answer.status_code == 405
        assert (await site.send("hello"))["artifacts"][0]["parts"] == [{"text": "hello"}]


async def test_below_an_agents_address_there_is_no_console() -> None:
    async with console(echo()) as site:
        assert "<title>" in (await site.http.get("/console/tasks")).text
        assert (await site.http.get("/agents/echo/console")).status_code == 404
        assert (await site.http.get("/agents/echo/console/tasks")).status_code == 404


@pytest.mark.parametrize("settings", [{"is_local": False}, {"console": False}])
async def test_there_is_no_console_where_it_would_be_open_to_others_or_is_turned_off(
    settings: dict[str, bool],
) -> None:
    async with console(echo(), **settings) as site:
        assert (await site.http.get("/console")).status_code == 404
        answer = await site.http.get("/", headers={"Accept": "text/html"})
        assert answer.status_code == 405


async def test_a_page_of_another_name_for_this_machine_is_refused() -> None:
    async with console(echo()) as site:
        answer = await site.http.get("/console", headers={"Host": "rebound.example"})
        assert answer.status_code == 421


async def test_every_page_says_what_browsers_may_do_with_it() -> None:
    async with console(echo()) as site:
        answer = await site.http.get("/console/tasks")
        policy = answer.headers.get_list("content-security-policy")
        assert policy == [
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
            "require-trusted-types-for 'script'; trusted-types dragoman"
        ]
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "private, no-store"
        assert "<script>" not in answer.text and "style=" not in answer.text


# Sessions


async def test_without_a_session_one_is_asked_to_sign_in_and_comes_back(tokens: str) -> None:
    async with console(echo(), auth_tokens=tokens) as site:
        visitor = Visitor(site.http)
        answer = await visitor.get("/console/tasks?state=TASK_STATE_FAILED")
        assert answer.status_code == 303
        place = answer.headers["location"]
        assert place.startswith("/console/login?next=")
        token = await visitor.token(place)
        answer = await visitor.submit(
            "/console/login",
            token=token,
            credential="alice-token-0123456789abc",
            next="/console/tasks?state=TASK_STATE_FAILED",
        )
        assert answer.headers["location"] == "/console/tasks?state=TASK_STATE_FAILED"
        assert "alice" in (await visitor.get("/console/tasks")).text


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "/consolex", "/"]
)
async def test_signing_in_leads_to_no_other_site(tokens: str, target: str) -> None:
    async with console(echo(), auth_tokens=tokens) as site:
        visitor = Visitor(site.http)
        answer = await visitor.submit(
            "/console/login",
            token=await visitor.token(),
            credential="alice-token-0123456789abc",
            next=target,
        )
        assert answer.headers["location"] == "/console"


@pytest.mark.parametrize("given", ["wrong", "", "two words", "ü", "x" * 5000])
async def test_a_wrong_credential_begins_no_session(tokens: str, given: str) -> None:
    async with console(echo(), auth_tokens=tokens) as site:
        visitor = Visitor(site.http)
        answer = await visitor.sign_in(given)
        assert answer.status_code == 401
        assert (await visitor.get("/console/tasks")).status_code == 303


async def test_the_cookie_is_for_this_server_alone_and_hides_the_credential(tokens: str) -> None:
    async with console(echo(), auth_tokens=tokens) as site:
        answer = await Visitor(site.http).sign_in("alice-token-0123456789abc")
        cookie = answer.headers["set-cookie"]
        port = site.url.rpartition(":")[2]
        assert cookie.startswith(f"dragoman-{port}=")
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
        assert "alice" not in cookie


async def test_elsewhere_than_on_this_machine_the_cookie_needs_tls(tokens: str) -> None:
    async with console(echo(), auth_tokens=tokens, is_local=False) as site:
        answer = await site.http.get("/console/login", headers={"Host": "agents.example"})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-dragoman=") and cookie.endswith("; Secure")


async def test_a_session_that_a_stranger_planted_is_not_the_one_after_signing_in(
    tokens: str,
) -> None:
    async with console(echo(), auth_tokens=tokens) as site:
        visitor = Visitor(site.http)
        await visitor.get("/console/login")
        planted = dict(site.http.cookies)
        await visitor.sign_in("alice-token-0123456789abc")
        assert dict(site.http.cookies) != planted
        site.http.cookies.clear()
        site.http.cookies.update(planted)
        assert (await visitor.get("/console/tasks")).status_code == 303


async def test_signing_out_ends_the_session_also_for_one_who_copied_it(tokens: str) -> None:
    async with console(echo(), auth_tokens=tokens) as site:
        visitor = Visitor(site.http)
        await visitor.sign_in("alice-token-0123456789abc")
        copied = dict(site.http.cookies)
        token = await visitor.token("/console/tasks")
        answer = await visitor.submit("/console/logout", token=token)
        assert answer.headers["location"] == "/console/login"
        site.http.cookies.clear()
        site.http.cookies.update(copied)
        assert (await visitor.get("/console/tasks")).status_code == 303


async def test_who_signed_out_is_out_in_every_process_of_the_store(
    tokens: str, tmp_path: Path
) -> None:
    store = str(tmp_path / "tasks.db")
    async with (
        console(echo(), auth_tokens=tokens, store=store) as site,
        console(echo(), auth_tokens=tokens, store=store) as other,
    ):
        visitor = Visitor(site.http)
        await visitor.sign_in("alice-token-0123456789abc")
        ((_, value),) = site.http.cookies.items()
        # A browser sends the cookie by the port in its name.
        other.http.cookies.set(f"dragoman-{other.url.rpartition(':')[2]}", value)
        there = Visitor(other.http)
        assert (await there.get("/console/tasks")).status_code == 200
        await visitor.submit("/console/logout", token=await visitor.token("/console/tasks"))
        assert (await there.get("/console/tasks")).status_code == 303


async def test_a_changed_cookie_is_none(tokens: str) -> None:
    async with console(echo(), auth_tokens=tokens) as site:
        visitor = Visitor(site.http)
        await visitor.sign_in("alice-token-0123456789abc")
        ((name, value),) = site.http.cookies.items()
        site.http.cookies.clear()
        site.http.cookies.set(name, value[:-4] + ("AAAA" if value[-4:] != "AAAA" else "BBBB"))
        assert (await visitor.get("/console/tasks")).status_code == 303


async def test_a_session_ends_with_its_credential(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    made = invoke("keys", "create", "--owner", "alice", "--keys", keys, "-o", "json")
    key = json.loads(made.stdout)
    async with console(echo(), auth="api-key", keys=keys) as site:
        visitor = Visitor(site.http)
        assert (await visitor.sign_in(key["key"])).status_code == 303
        assert (await visitor.get("/console/tasks")).status_code == 200
        assert invoke("keys", "revoke", key["id"], "--keys", keys, "--yes").exit_code == 0

        async def ended() -> httpx.Response | None:
            answer = await visitor.get("/console/tasks")
            return answer if answer.status_code == 303 else None

        # The file of keys is looked at once a second.
        assert "Max-Age=0" in (await eventually(ended)).headers["set-cookie"]


async def test_a_caller_sees_its_own_and_no_page_of_operators(tokens: str) -> None:
    async with console(echo(), auth_tokens=tokens) as site:
        for name in ("operator-token-0123456789", "alice-token-0123456789abc"):
            body = {"message": {"messageId": name, "role": "ROLE_USER", "parts": [{"text": name}]}}
            sent = await site.http.post(
                "/message:send", json=body, headers={"Authorization": f"Bearer {name}"}
            )
            assert sent.status_code == 200, sent.text
        visitor = Visitor(site.http)
        await visitor.sign_in("alice-token-0123456789abc")
        listed = (await visitor.get("/console/tasks")).text
        assert "alice-token" in listed and "operator-token" not in listed
        refused = await visitor.get("/console/system")
        assert refused.status_code == 403
        assert "the scope dragoman:operator, which your credential does not have" in refused.text
        assert (await visitor.get("/console")).headers["location"] == "/console/tasks"


# Forms


async def test_where_one_signs_in_commands_take_the_credential_from_a_variable(
    tokens: str,
) -> None:
    async with console(echo(), auth_tokens=tokens) as site:
        visitor = Visitor(site.http)
        await visitor.sign_in(_ALICE)
        headers = {"Authorization": f"Bearer {_ALICE}"}
        task = await site.call("SendMessage", {"message": message("hello")}, headers=headers)
        path = f"/console/tasks/{task['task']['id']}/raw"
        for shape in ("stored", "1.0", "1.0-rest", "0.3", "0.2"):
            page = (await visitor.get(f"{path}?as={shape}")).text
            assert "curl -H &#34;authorization: Bearer $TOKEN&#34; " in page, shape
            assert _ALICE not in page


async def test_a_store_that_is_away_is_told_on_a_page(
    tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("it is away")

    async with console(echo(), auth_tokens=tokens) as site:
        visitor = Visitor(site.http)
        await visitor.sign_in(_ALICE)
        token = await visitor.token("/console/tasks")
        with monkeypatch.context() as patch:
            patch.setattr(site.app.store, "known", away)
            for answer in (
                await visitor.get("/console/tasks"),
                await visitor.submit("/console/tasks", token=token),
            ):
                assert answer.status_code == 503
                assert "The store cannot be reached" in answer.text
                assert "load this page again" in answer.text
                assert "set-cookie" not in answer.headers, "the session goes on"
        assert (await visitor.get("/console/tasks")).status_code == 200


async def test_a_form_without_its_token_does_nothing() -> None:
    async with console(echo()) as site:
        visitor = Visitor(site.http)
        await visitor.get("/console/agents/echo")
        answer = await visitor.submit("/console/agents/echo", token="", words="hello")
        assert answer.status_code == 403
        assert await site.total() == 0


async def test_the_token_of_another_session_is_of_no_use() -> None:
    async with console(echo()) as site:
        visitor = Visitor(site.http)
        theirs = await visitor.token("/console/agents/echo")
        site.http.cookies.clear()
        await visitor.get("/console/agents/echo")
        answer = await visitor.submit("/console/agents/echo", token=theirs, words="hello")
        assert answer.status_code == 403
        assert await site.total() == 0


@pytest.mark.parametrize("origin", [None, "null", "https://evil.example", "http://127.0.0.1:1"])
async def test_a_form_of_another_origin_does_nothing(origin: str | None) -> None:
    # Also not of one whose pages may call agents.
    async with console(echo(), cors="https://evil.example") as site:
        visitor = Visitor(site.http)
        token = await visitor.token("/console/agents/echo")
        answer = await visitor.submit(
            "/console/agents/echo", token=token, origin=origin, words="hello"
        )
        assert answer.status_code == 403
        assert await site.total() == 0


async def test_a_form_of_our_own_page_is_taken() -> None:
    async with console(echo()) as site:
        visitor = Visitor(site.http)
        token = await visitor.token("/console/agents/echo")
        answer = await visitor.submit(
            "/console/agents/echo", token=token, words="hello", view="0.3"
        )
        assert answer.status_code == 200, answer.text
        assert "message/send" in answer.text
        assert await site.total() == 1


async def test_a_form_that_is_too_large_is_refused() -> None:
    async with console(echo()) as site:
        visitor = Visitor(site.http)
        token = await visitor.token("/console/agents/echo")
        answer = await visitor.submit("/console/agents/echo", token=token, words="x" * 70_000)
        assert answer.status_code == 413
        assert await site.total() == 0


async def test_no_address_makes_a_page_say_something() -> None:
    async with console(echo()) as site:
        visitor = Visitor(site.http)
        for query in ("notice=Call+0900", "notice=Call+0900&by=", "notice=Call+0900&by=00"):
            assert "Call 0900" not in (await visitor.get(f"/console/tasks?{query}")).text
        token = await visitor.token("/console/tasks")
        answer = await visitor.submit("/console/tasks", token=token)
        assert "0 canceled." in (await visitor.get(answer.headers["location"])).text


async def test_the_form_to_sign_in_names_what_people_have(tokens: str, tmp_path: Path) -> None:
    """Not by what a gateway proves to its own agents who it is."""
    settings = load_settings({}, store=str(tmp_path / "tasks.db"), auth_tokens=tokens)
    app = gateway_app(echo(), settings=settings, is_local=True, parts=[ConsolePart()])
    async with hosting(app) as url, client(url) as http:
        shown = (await Visitor(http).get("/console/login")).text
        assert "This server takes tokens and keys of agents." in shown
