"""A card file: what an operator says in the card, and what is not theirs to say."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness.serving import serving

from dragoman import Agent, AgentSkill, App, Settings
from dragoman.config import CardSettings, SecuritySettings, StoreSettings
from dragoman.errors import ConfigError

NEW = "/.well-known/agent-card.json"
BEARER = {"httpAuthSecurityScheme": {"scheme": "bearer"}}
more = [AgentSkill(id="secret", name="Secret", description="Is more.", tags=["x"])]
agent = Agent("Author's", "Is the author's.", extended_skills=more)


@agent.skill(tags=["t"], examples=["one"])
async def echo(text: str) -> str:
    return text


@agent.skill
async def other(text: str) -> str:
    return text


TOML = """
name = "Operator's"
version = "9.9"
documentationUrl = "https://example.com/docs"
securityRequirements = [{schemes = {token = {list = ["read"]}}}]

[provider]
organization = "Example"
url = "https://example.com"

[securitySchemes.token.httpAuthSecurityScheme]
scheme = "bearer"

[[skills]]
id = "echo"
description = "Says it again."
tags = ["again"]

[[skills]]
id = "secret"
name = "Not for all"
"""


async def test_members_of_the_file_stand_in_the_card(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    file.write_text(TOML)
    async with serving(agent, card=str(file), extended_card_public=True) as site:
        card = (await site.http.get(NEW, headers={"A2A-Version": "1.0"})).json()
        assert (card["name"], card["version"]) == ("Operator's", "9.9")
        assert card["description"] == "Is the author's."
        assert card["provider"]["organization"] == "Example"
        assert card["securitySchemes"] == {"token": BEARER}
        assert card["securityRequirements"] == [{"schemes": {"token": {"list": ["read"]}}}]
        first, second = card["skills"]
        assert (first["name"], first["description"]) == ("Echo", "Says it again.")
        assert (first["tags"], first["examples"]) == (["again"], ["one"])
        assert second["name"] == "Other"
        assert card["supportedInterfaces"][0]["url"].startswith(site.url)
        old = (await site.http.get(NEW, headers={"A2A-Version": "0.3"})).json()
        assert old["name"] == "Operator's"
        assert old["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
        extended = await site.call("GetExtendedAgentCard", headers={"A2A-Version": "1.0"})
        assert [skill["name"] for skill in extended["skills"]] == ["Echo", "Other", "Not for all"]


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"nmae": "x"}, "`nmae`"),
        ({"name": 5}, r"\$\.name"),
        ({"name": ""}, r"\$\.name"),
        ({"provider": {"organization": "x"}}, r"\$\.provider"),
        ({"provider": {"organization": "x", "url": "u", "fax": "1"}}, r"`fax`.*\$\.provider"),
        ({"skills": [{"id": "echo", "tgas": []}]}, r"`tgas`.*\$\.skills\[0\]"),
        ({"skills": [{"id": "echo"}, {"id": "gone"}]}, r"skills\[1\]\.id: .* no skill gone"),
        ({"skills": [{"id": "echo", "tags": []}]}, r"skills\[0\]\.tags: "),
        ({"defaultInputModes": []}, "defaultInputModes: "),
        ({"securitySchemes": {"a": {"httpAuthSecurityScheme": {}}}}, r"securitySchemes\.a\."),
        ({"securityRequirements": [{"schemes": {"b": {}}}]}, r"securityRequirements\[0\]\..*b"),
        ({"supportedInterfaces": []}, "`supportedInterfaces`"),
        ({"capabilities": {}}, "`capabilities`"),
        ({"signatures": []}, "`signatures`"),
        ([], "object"),
    ],
)
def test_what_is_wrong_is_told_by_its_place(tmp_path: Path, members: Any, says: str) -> None:
    file = tmp_path / "card.json"
    file.write_text(json.dumps(members))
    with pytest.raises(ConfigError, match=f"card: .*card.json: .*{says}"):
        App(
            agent,
            settings=Settings(
                stores=StoreSettings(location="memory:"), cards=CardSettings(file=str(file))
            ),
        )


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("card.json", "{", "cannot be read"),
        ("card.toml", "=", "cannot be read"),
        ("card.json", b"\xff\xfe", "cannot be read"),
        ("card.yaml", "name: x", "must end in"),
        ("none.json", None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: str | bytes | None, says: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match=f"{name}: {says}"):
        App(
            agent,
            settings=Settings(
                stores=StoreSettings(location="memory:"), cards=CardSettings(file=str(file))
            ),
        )


def test_a_file_is_the_card_of_one_agent(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{}")
    two = Agent("Two", "Is another.")
    with pytest.raises(ConfigError, match="one agent"):
        App(
            agent,
            two,
            settings=Settings(
                stores=StoreSettings(location="memory:"),
                cards=CardSettings(file=str(tmp_path / "card.json")),
            ),
        )


def test_schemes_of_a_file_do_not_stand_beside_those_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    front = {"front": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
    file.write_text(json.dumps({"securitySchemes": front}))
    agent = Agent("Front", "stands behind a proxy")
    App(
        agent,
        settings=Settings(
            stores=StoreSettings(location="memory:"), cards=CardSettings(file=str(file))
        ),
    )
    with pytest.raises(ConfigError, match="--auth"):
        App(
            agent,
            settings=Settings(
                stores=StoreSettings(location="memory:"),
                cards=CardSettings(file=str(file)),
                security=SecuritySettings(auth_token="x" * 16),
            ),
        )
