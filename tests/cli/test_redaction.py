"""Secrets never leave: known values anywhere, usual places even of unknown ones."""

import pytest

from dragoman.cli.redaction import HIDDEN, NextCommand, Redactor

SECRET = "s3cr&t value"


@pytest.fixture
def redactor() -> Redactor:
    found = Redactor()
    found.add(SECRET, "abc", "")
    return found


@pytest.mark.parametrize(
    "text",
    [
        f"plain {SECRET} text",
        "https://host/path?key=s3cr%26t%20value&x=1",
        "key=s3cr%26t+value",
        "https://user:pass@host/",
        "https://host/?api_key=unknown1&next=2",
        "https://host/?access_token=unknown1",
        "Authorization: Bearer unknown1",
        "basic dXNlcjpwYXNz",
    ],
)
def test_a_text_has_no_secret(redactor: Redactor, text: str) -> None:
    shown = redactor.text(text)
    assert HIDDEN in shown
    assert not any(secret in shown for secret in ("s3cr", "pass@", "unknown1", "dXNl"))


def test_a_short_secret_is_found_as_a_word_only(redactor: Redactor) -> None:
    assert redactor.text("abc abcd") == f"{HIDDEN} abcd"


@pytest.mark.parametrize("text", ["abc-def.abc.example:80", "latest", "--abc", "/abc/x", "abc:80"])
def test_a_short_secret_takes_no_piece_out_of_a_word(redactor: Redactor, text: str) -> None:
    redactor.add("test")
    assert redactor.text(text) == text


@pytest.mark.parametrize(
    "text", ["Bearer abc", "k=abc&x", '"abc"', "(abc)", "it is abc.", "abc: no", "u k=abc; d"]
)
def test_a_short_secret_that_stands_alone_is_hidden(redactor: Redactor, text: str) -> None:
    assert "abc" not in redactor.text(text)


def test_the_value_of_a_header_is_hidden_there_and_elsewhere_only_if_it_is_long() -> None:
    redactor = Redactor()
    redactor.add_values("1", "hunter22")
    assert redactor.text("127.0.0.1:9100 1 hunter22") == f"127.0.0.1:9100 1 {HIDDEN}"
    assert redactor.headers({"accept": "1", "x-tenant": "1", "age": "11"}) == {
        "accept": HIDDEN,
        "x-tenant": HIDDEN,
        "age": "11",
    }


def test_a_command_that_we_made_is_shown_as_it_is(redactor: Redactor) -> None:
    line = NextCommand("dragoman task get -a abc:1 --wait abc")
    assert redactor.text(line) == line
    assert redactor.text(str.__str__(line) + " ") != line + " "


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("user:pw@127.0.0.1:9100", "127.0.0.1:9100"),
        ("user:p@ss@host", "host"),
        ("https://user:pw@host/a@b", "https://host/a@b"),
        ("https://host/card?api_key=unknown1", f"https://host/card?api_key={HIDDEN}"),
        ("@name", "@name"),
        ("./cards/me@work.json", "./cards/me@work.json"),
        ("host:1", "host:1"),
    ],
)
def test_a_reference_has_no_user_and_no_password(
    redactor: Redactor, reference: str, shown: str
) -> None:
    assert redactor.reference(reference) == shown
    redactor.add_reference(reference)
    assert "pw" not in redactor.text(f"nothing is at {reference}")


def test_what_is_no_secret_stays(redactor: Redactor) -> None:
    text = "GET https://host/tasks/1?historyLength=0 user_code=ABCD-EFGH"
    assert redactor.text(text) == text


def test_headers_are_shown_by_a_list_of_harmless_ones(redactor: Redactor) -> None:
    shown = redactor.headers({"A2A-Version": "1.0", "X-Key": "v", "cookie": "a=b", "host": "h"})
    assert shown == {"A2A-Version": "1.0", "X-Key": HIDDEN, "cookie": HIDDEN, "host": "h"}
    answer = {"X-Accel-Buffering": "no", "x-ratelimit-remaining": "3", "content-language": "en"}
    assert redactor.headers(answer) == answer
    assert redactor.headers({"set-cookie": "a", "x-auth": "b"}) == {
        "set-cookie": HIDDEN,
        "x-auth": HIDDEN,
    }


def test_members_that_carry_secrets_have_none(redactor: Redactor) -> None:
    body = (
        b'{"a": [{"token": "x", "authentication": {"scheme": "Bearer", "credentials": "y"}}],'
        b' "access_token": "z", "clientSecret": "w", "text": "abc"}'
    )
    shown = redactor.body(body)
    assert shown.count(HIDDEN) == 5 and '"scheme": "Bearer"' in shown
    assert redactor.body(b"\xff token=unknown1") == f"\\xff token={HIDDEN}"
