"""What a user may write to name an agent."""

from pathlib import Path
from typing import Any

import pytest

from dragoman.client.cards.references import CatalogEntry, Reference, find, in_catalog, parse
from dragoman.errors import CardInvalid, CardNotFound

KNOWN = "/.well-known/agent-card.json"
CATALOG = "/.well-known/ai-catalog.json"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("agent.example", "https://agent.example"),
        ("agent.example:8443", "https://agent.example:8443"),
        ("agent.example/", "https://agent.example"),
        (" agent.example\n", "https://agent.example"),
        ("AGENT.Example", "https://agent.example"),
        ("https://agent.example", "https://agent.example"),
        ("https://agent.example/", "https://agent.example"),
        ("https://agent.example:443/", "https://agent.example"),
        ("https://agent.example/#part", "https://agent.example"),
        ("http://agent.example", "http://agent.example"),
        ("HTTPS://agent.example", "https://agent.example"),
        ("192.0.2.7:9000", "https://192.0.2.7:9000"),
        ("[2001:db8::1]:9000", "https://[2001:db8::1]:9000"),
        ("müller.example", "https://xn--mller-kva.example"),
        ("localhost", "http://localhost"),
        ("localhost:8000", "http://localhost:8000"),
        ("LocalHost:8000/", "http://localhost:8000"),
        ("agent.localhost:8000", "http://agent.localhost:8000"),
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("127.5.5.5", "http://127.5.5.5"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("[::1]", "http://[::1]"),
        ("localhost.example", "https://localhost.example"),
        ("128.0.0.1", "https://128.0.0.1"),
    ],
)
def test_a_host_stands_for_the_card_at_its_well_known_path(text: str, url: str) -> None:
    assert parse(text) == Reference("url", url=url + KNOWN, origin=url, is_host=True)


@pytest.mark.parametrize(
    ("text", "url", "origin"),
    [
        ("https://a.example/agents/x", "https://a.example/agents/x", "https://a.example"),
        ("https://a.example/x/", "https://a.example/x/", "https://a.example"),
        (f"https://a.example{KNOWN}", f"https://a.example{KNOWN}", "https://a.example"),
        ("https://a.example/c.json?v=1#x", "https://a.example/c.json?v=1", "https://a.example"),
        ("https://a.example/?agent=7", "https://a.example/?agent=7", "https://a.example"),
        ("http://localhost:9/x y".replace(" ", "%20"), "http://localhost:9/x%20y", None),
        ("localhost:9000/a/card", "http://localhost:9000/a/card", "http://localhost:9000"),
        ("a.example/agents/x", "https://a.example/agents/x", "https://a.example"),
    ],
)
def test_any_other_url_stands_for_itself(text: str, url: str, origin: str | None) -> None:
    found = parse(text)
    assert (found.kind, found.url, found.is_host) == ("url", url, False)
    assert found.origin == (origin or "http://localhost:9")


def test_a_path_stands_for_a_file_whether_it_is_there_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ("/no/such", "./card", "../card", "missing.json", "missing.JSON"):
        assert parse(text) == Reference("file", path=Path(text))
    assert parse("~/card").path == tmp_path / "card"
    assert parse(Path("~/card")).path == tmp_path / "card"
    assert parse("~nobody-at-all/card").kind == "file"
    assert parse(Path("agent.example")) == Reference("file", path=Path("agent.example"))
    assert parse("file:///etc/a%20card").path == Path("/etc/a card")
    assert parse("file://localhost/etc/card").path == Path("/etc/card")


def test_a_name_is_a_file_when_there_is_one(tmp_path: Path) -> None:
    assert parse("weather").kind == "url"
    (tmp_path / "weather").write_text("{}")
    assert parse("weather") == Reference("file", path=Path("weather"))
    (tmp_path / "folder").mkdir()
    assert parse("folder").kind == "url"


def test_catalogs_are_named_in_three_ways() -> None:
    assert parse("@weather") == Reference("catalog", name="weather")
    assert parse("registry+https://gw.example/weather") == Reference(
        "catalog", url=f"https://gw.example{CATALOG}", origin="https://gw.example", name="weather"
    )
    assert parse("registry+http://localhost:9/team/a%20b/") == Reference(
        "catalog",
        url=f"http://localhost:9/team{CATALOG}",
        origin="http://localhost:9",
        name="a b",
    )
    assert parse("catalog+https://c.example/doc.json#weather") == Reference(
        "catalog", url="https://c.example/doc.json", origin="https://c.example", name="weather"
    )
    assert parse("catalog+https://c.example#weather").url == f"https://c.example{CATALOG}"
    assert parse("catalog+https://c.example/doc.json").name == ""


def test_an_at_name_is_looked_up_in_the_catalog_that_is_set() -> None:
    found = in_catalog(parse("@weather"), "https://c.example/all.json")
    assert (found.url, found.origin) == ("https://c.example/all.json", "https://c.example")
    assert in_catalog(parse("@weather"), "https://c.example").url == f"https://c.example{CATALOG}"
    own = parse("catalog+https://d.example/doc.json#weather")
    assert in_catalog(own, "https://c.example") == own
    with pytest.raises(CardNotFound) as caught:
        in_catalog(parse("@weather"), "")
    assert caught.value.facts["hint"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "@",
        "ftp://a.example/card",
        "javascript://a",
        "https://",
        "https:///card",
        "https://user:secret@a.example/",
        "user@a.example",
        "https://a.example:99999/",
        "https://a example/",
        "https://a.example\\@b.example/",
        "https://0x7f000001/",
        "a b",
        "a\x00b",
        "-",
        "https://" + "a" * 3000,
        "file://other.example/etc/card",
        "registry+https://gw.example",
        "registry+https://gw.example/",
        "registry+ftp://gw.example/x",
        "catalog+file:///x#y",
        "http://[::1",
        "[::1",
        "https://[x#y",
        "registry+https://[x#y",
        "::1",
    ],
)
def test_what_names_nothing_is_refused_without_saying_secrets(text: str) -> None:
    with pytest.raises(CardNotFound) as caught:
        parse(text)
    assert "secret" not in str(caught.value)
    assert "secret" not in str(caught.value.facts)


CARD = {"name": "Weather", "supportedInterfaces": []}
OLDER = {"name": "Old", "url": "https://old.example/rpc", "skills": []}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([{"name": "w", "card": CARD}], CatalogEntry(card=CARD)),
        (
            [{"id": "w", "url": "https://w.example/card"}],
            CatalogEntry(url="https://w.example/card"),
        ),
        (
            {"agents": [{"id": "w", "cardUrl": "/w.json", "url": "/home"}]},
            CatalogEntry(url="/w.json"),
        ),
        ({"agents": {"w": {"card": CARD}}}, CatalogEntry(card=CARD)),
        ({"agents": {"w": "https://w.example"}}, CatalogEntry(url="https://w.example")),
        ({"entries": {"w": OLDER}}, CatalogEntry(card=OLDER)),
        ([{**OLDER, "name": "w"}], CatalogEntry(card={**OLDER, "name": "w"})),
        (
            {
                "specVersion": "1.0",
                "entries": [
                    {
                        "identifier": "urn:air:example.com:mcp:w",
                        "displayName": "w",
                        "mediaType": "application/mcp-server-card+json",
                        "url": "https://mcp.example",
                    },
                    {
                        "identifier": "urn:air:example.com:agent:w",
                        "displayName": "Weather",
                        "mediaType": "application/a2a-agent-card+json",
                        "url": "https://w.example/card",
                    },
                ],
            },
            CatalogEntry(url="https://w.example/card"),
        ),
        (
            {
                "entries": [
                    {"identifier": "urn:x:w", "data": CARD},
                    # A whole name comes first.
                    {"displayName": "w", "data": OLDER, "type": "application/a2a-agent-card+json"},
                    5,
                    None,
                    {"name": 5},
                ]
            },
            CatalogEntry(card=OLDER),
        ),
        # The same entry twice is no contradiction.
        ([{"name": "w", "card": CARD}, {"name": "w", "card": CARD}], CatalogEntry(card=CARD)),
    ],
)
def test_an_entry_is_found_in_each_kind_of_catalog(document: Any, expected: CatalogEntry) -> None:
    assert find(document, "w") == expected


def test_the_only_entry_needs_no_name() -> None:
    assert find([{"name": "w", "card": CARD}], "") == CatalogEntry(card=CARD)
    for document in ([], [{"name": "a", "card": CARD}, {"name": "b", "card": CARD}]):
        with pytest.raises(CardNotFound):
            find(document, "")


def test_an_unknown_or_ambiguous_name_is_not_found() -> None:
    two = [{"name": "w", "url": "https://a.example"}, {"name": "w", "url": "https://b.example"}]
    for document, name in (([], "w"), ([{"name": "W", "card": CARD}], "w"), (two, "w")):
        with pytest.raises(CardNotFound):
            find(document, name)


@pytest.mark.parametrize("document", [5, None, "x", {}, {"entries": 5}, [{"name": "w"}]])
def test_what_is_no_catalog_is_invalid(document: Any) -> None:
    with pytest.raises(CardInvalid):
        find(document, "w")
