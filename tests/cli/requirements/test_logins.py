"""Logins: what the issuer is asked, what is kept, when it is renewed."""

import json
import re
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.testing.issuer import OPENID
from dragoman.testing.scripted.access import ISSUER
from dragoman.testing.scripted.serve import hosted
from tests.cli.requirements.credentials import DONE, SECRET, calls, issued
from tests.cli.requirements.desk import Desk, sitting, together

LOGIN = ("auth", "login", "--client-id", "public", "--flow", "device-code")


class Timed:
    """Notes when an app is asked for a path."""

    def __init__(self, app: Any, path: str) -> None:
        self._app = app
        self._path = path
        self.times: list[float] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == self._path:
            self.times.append(time.monotonic())
        await self._app(scope, receive, send)

    def pauses(self) -> list[float]:
        """Return the times between two requests."""
        return [late - early for early, late in zip(self.times, self.times[1:], strict=False)]


@pytest.mark.cli("A2ACLI_AUTH_005")
def test_a_device_code_is_shown_on_stderr_and_polled_for_as_the_issuer_says(folder: Path) -> None:
    ways: dict[str, dict[str, Any]] = {
        "granted": {"device": ("pending", "pending", "granted"), "interval": 0.4},
        "slow": {"device": ("slow_down", "granted"), "interval": 0.1},
        "denied": {"device": ("pending", "denied")},
        "expired": {"device": ("pending", "expired")},
        "late": {"device": ("wait",), "code_lasts": 0.5, "interval": 0.2},
    }
    ended, timed = {}, {}

    def log_in(way: str) -> None:
        agent, _ = issued("oauth2", **ways[way])
        timed[way] = Timed(agent, f"{ISSUER}/token")
        with hosted(timed[way]) as url:
            desk = Desk(folder / way, url, agent)
            desk.folder.mkdir()
            ended[way] = desk.run(*LOGIN, "-o", "json", exit=None)
            if way in ("granted", "slow"):
                assert DONE in desk.run("send", "echo hi").out

    together(*(lambda w=way: log_in(w) for way in ways))
    for way in ("granted", "slow"):
        assert ended[way].exit == 0 and ended[way].json["login"]["flow"] == "device-code"
    for way, error in (("denied", "access_denied"), ("expired", "expired"), ("late", "expired")):
        assert ended[way].exit == 4 and ended[way].error["code"] == "A2ACLI_ERR_AUTH_FAILED"
        assert error in ended[way].error["message"]
        assert not [*(folder / way).rglob("tokens/*.json")]
    for one in ended.values():
        assert re.search(r"^Visit: http://127.0.0.1:\d+/issuer/activate", one.err, re.M)
        assert re.search(r"^Code: WDJB-\d{4}$", one.err, re.M)
    assert min(timed["granted"].pauses()) >= 0.39 and len(timed["granted"].times) == 3
    # RFC 8628: five seconds more from then on.
    assert min(timed["slow"].pauses()) >= 5.0
    assert len(timed["late"].times) <= 2


@pytest.mark.cli("A2ACLI_AUTH_006")
def test_client_credentials_need_nobody_and_their_secret_comes_from_a_variable(
    folder: Path,
) -> None:
    agent, issuer = issued("oauth2")
    login = ("auth", "login", "--client-id", "demo", "-o", "json")
    with sitting(folder, agent) as desk:
        secret = {"A2ACLI_CLIENT_SECRET": SECRET}
        made = desk.run(*login, "--scope", "tasks", env=secret)
        asked = issuer.asked_for("/token")[-1]
        wrong, none, nobody = together(
            lambda: desk.run(*login, env={"A2ACLI_CLIENT_SECRET": "no"}, exit=4),
            lambda: desk.run(*login, "--flow", "client-credentials", exit=2),
            lambda: desk.run("auth", "login", "-o", "json", env=secret, exit=2),
        )
        assert DONE in desk.run("send", "echo hi").out
        kept = "".join(path.read_text(errors="replace") for path in desk.files())
    assert made.json["login"]["flow"] == "client-credentials"
    assert made.json["login"]["scopes"] == ["tasks"]
    assert asked.form["grant_type"] == "client_credentials" and asked.form["scope"] == "tasks"
    assert asked.client == "demo" and asked.headers["authorization"].startswith("Basic ")
    assert "Visit" not in made.err and SECRET not in made.out + made.err + kept
    assert wrong.error["code"] == "A2ACLI_ERR_AUTH_FAILED"
    assert "A2ACLI_CLIENT_SECRET" in none.error["hint"]
    assert nobody.error["code"] == "A2ACLI_ERR_USAGE"


def tokens_of(desk: Desk) -> dict[str, str]:
    """Return the token that is kept."""
    (path,) = desk.folder.rglob("tokens/*.json")
    return json.loads(path.read_text())["token"]


@pytest.mark.cli("A2ACLI_AUTH_007")
def test_a_token_is_kept_for_its_owner_attached_later_and_renewed(folder: Path) -> None:
    agent, issuer = issued("oauth2", device=("granted",))
    with sitting(folder, agent) as desk:
        made = desk.run(*LOGIN)
        (path,) = folder.rglob("tokens/*.json")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        first = tokens_of(desk)
        assert first["access"] not in made.out + made.err
        assert DONE in desk.run("send", "echo one").out
        assert calls(desk)[-1].headers["authorization"] == f"Bearer {first['access']}"

        issuer.revoke(first["access"])
        assert DONE in desk.run("send", "echo two").out
        second = tokens_of(desk)
        assert second["access"] != first["access"]
        assert issuer.asked_for("/token")[-1].form["refresh_token"] == first["refresh"]
        assert calls(desk)[-1].headers["authorization"] == f"Bearer {second['access']}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

        given = desk.run("send", "echo three", "--bearer", "by-hand", "-o", "json", exit=4)
        assert given.error["code"] == "A2ACLI_ERR_AUTH_FAILED"
        assert calls(desk)[-1].headers["authorization"] == "Bearer by-hand"

        path.unlink()
        gone = desk.run("send", "echo four", "-o", "json", exit=4)
        assert gone.error["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
        assert "dragoman auth login" in gone.error["hint"]


@pytest.mark.cli("A2ACLI_AUTH_007")
def test_a_token_is_renewed_before_it_ends_and_never_goes_to_another_origin(folder: Path) -> None:
    agent, issuer = issued("oauth2", device=("granted",), lasts=10)
    with sitting(folder, agent) as desk, sitting(folder, auth="oauth2") as other:
        desk.run(*LOGIN)
        first = tokens_of(desk)
        assert DONE in desk.run("send", "echo hi").out
        assert len(issuer.asked_for("/token")) == 2
        assert calls(desk)[-1].headers["authorization"] != f"Bearer {first['access']}"

        # The agent's own card, but with a stranger's address in it.
        card = desk.json("card", "get")
        (folder / "card.json").write_text(
            json.dumps(
                card | {"supportedInterfaces": other.json("card", "get")["supportedInterfaces"]}
            )
        )
        refused, moved = together(
            lambda: other.run("send", "echo hi", "-o", "json", exit=4),
            lambda: desk.run("send", "echo hi", "-o", "json", a="./card.json", exit=4),
        )
        for ended in (refused, moved):
            assert ended.error["code"] == "A2ACLI_ERR_CREDENTIALS_MISSING"
        assert calls(other) == []


@pytest.mark.cli("A2ACLI_AUTH_010")
def test_openid_connect_is_discovered_logged_in_to_and_renewed(folder: Path) -> None:
    agent, issuer = issued("oidc", device=("granted",), lasts=10)
    with sitting(folder, agent) as desk:
        made = desk.run(*LOGIN, "-o", "json")
        assert made.json["login"]["issuer"] == desk.url + ISSUER
        assert [asked.path for asked in issuer.requests[:2]] == [
            ISSUER + OPENID,
            f"{ISSUER}/device",
        ]
        first = tokens_of(desk)
        assert DONE in desk.run("send", "echo hi").out
        renewed = issuer.asked_for("/token")[-1].form
        assert renewed["grant_type"] == "refresh_token"
        assert renewed["refresh_token"] == first["refresh"]
        assert calls(desk)[-1].headers["authorization"] == f"Bearer {tokens_of(desk)['access']}"
        assert tokens_of(desk)["access"] != first["access"]


@pytest.mark.cli("A2ACLI_AUTH_010")
def test_a_description_of_another_issuer_gets_no_secret(folder: Path) -> None:
    agent, issuer = issued("oidc", url="https://issuer.invalid")
    with sitting(folder, agent) as desk:
        env = {"A2ACLI_CLIENT_ID": "demo", "A2ACLI_CLIENT_SECRET": SECRET}
        failed = desk.run("auth", "login", "-o", "json", env=env, exit=4)
    assert failed.error["code"] == "A2ACLI_ERR_AUTH_FAILED"
    assert {asked.method for asked in issuer.requests} == {"GET"}
