"""Where credentials may go."""

import pytest

from dragoman.client.credentials.origins import Origins
from dragoman.errors import ConfigError, CredentialsMissing


@pytest.mark.parametrize(
    "url",
    [
        "https://agent.example/a2a?x=1",
        "HTTPS://AGENT.example:443/",
        "https://agent.example./",
        "http://10.0.0.5:9000/",
        "http://localhost:8000/",
        "https://localhost:8000/",
        "http://127.0.0.1:1/",
        "https://[::1]:9/",
    ],
)
def test_credentials_go_where_the_user_said(url: str) -> None:
    named = [
        "https://agent.example/card.json",
        "http://10.0.0.5:9000",
        "localhost:8000",
        "127.0.0.1:1",
        "[::1]:9",
    ]
    Origins(named).check(url)
    assert url in Origins(named)


@pytest.mark.parametrize(
    "url",
    [
        "https://other.example/",
        "https://agent.example:8443/",
        "https://agent.example.evil.example/",
        "https://evil.example/https://agent.example/",
        "https://agent.example@evil.example/",
        "https://evil.example\\@agent.example/",
        "https://sub.agent.example/",
        "ftp://agent.example/",
        "agent.example",
        "",
    ],
)
def test_credentials_go_nowhere_else(url: str) -> None:
    origins = Origins(["agent.example"])
    with pytest.raises(CredentialsMissing):
        origins.check(url)
    assert url not in origins


def test_the_refusal_names_the_origin_and_the_argument() -> None:
    with pytest.raises(CredentialsMissing) as caught:
        Origins(["agent.example"]).check("https://user.example:444/path?secret")
    assert caught.value.facts == {"origin": "https://user.example:444"}
    assert "--trust-origin https://user.example:444" in caught.value.public
    assert "origins=['https://user.example:444']" in caught.value.public
    assert "secret" not in caught.value.public


def test_plain_http_has_to_be_named_as_such() -> None:
    with pytest.raises(CredentialsMissing, match="over plain http"):
        Origins(["agent.example"]).check("http://agent.example/")
    with pytest.raises(CredentialsMissing, match="over plain http"):
        Origins(["https://agent.example"]).check("http://agent.example:8000/")
    Origins(["http://agent.example"]).check("http://agent.example/")


def test_the_interfaces_of_a_card_the_user_brought_are_trusted_but_not_with_plain_http() -> None:
    implied = ["https://a.example/x", "http://b.example/", "http://127.0.0.1:5/", "/relative"]
    origins = Origins(implied=implied)
    assert "https://a.example" in origins
    assert "http://127.0.0.1:5" in origins
    assert "http://b.example" not in origins


def test_more_origins_leave_the_first_ones_as_they_were() -> None:
    first = Origins(["a.example"])
    more = first.also("", "https://b.example:1")
    assert "https://a.example" in more
    assert "https://b.example:1" in more
    assert "https://b.example:1" not in first
    assert repr(more) == "Origins(['https://a.example', 'https://b.example:1'])"


@pytest.mark.parametrize("entry", ["ftp://a.example", "a b", "", "https://"])
def test_an_origin_that_is_none_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError):
        Origins([entry])
