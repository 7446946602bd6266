"""Secrets never leave: known values anywhere, usual places even of unknown ones."""

import pytest

from dragoman.cli.redaction import HIDDEN, Redactor

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


def test_what_is_no_secret_stays(redactor: Redactor) -> None:
    text = "GET https://host/tasks/1?historyLength=0 user_code=ABCD-EFGH"
    assert redactor.text(text) == text


def test_headers_are_shown_by_a_list_of_harmless_ones(redactor: Redactor) -> None:
    shown = redactor.headers({"A2A-Version": "1.0", "X-Key": "v", "cookie": "a=b", "host": "h"})
    assert shown == {"A2A-Version": "1.0", "X-Key": HIDDEN, "cookie": HIDDEN, "host": "h"}


def test_members_that_carry_secrets_have_none(redactor: Redactor) -> None:
    body = (
        b'{"a": [{"token": "x", "authentication": {"scheme": "Bearer", "credentials": "y"}}],'
        b' "access_token": "z", "clientSecret": "w", "text": "abc"}'
    )
    shown = redactor.body(body)
    assert shown.count(HIDDEN) == 5 and '"scheme": "Bearer"' in shown
    assert redactor.body(b"\xff token=unknown1") == f"\\xff token={HIDDEN}"
