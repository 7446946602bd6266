"""Secrets, the agents that ask for them, and what was asked of those."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.certificates import LOOPBACK, Authority, Files

from dragoman.testing.issuer import Issuer
from dragoman.testing.scripted.agent import ScriptedAgent, SeenRequest
from dragoman.testing.scripted.demo import demo
from dragoman.testing.scripted.serve import ListenOptions, hosted
from tests.cli.requirements.desk import Desk

SECRET = "demo-secret"
CARD = "/.well-known/agent-card.json"
COMPLETED = "TASK_STATE_COMPLETED"
DONE = f"State: {COMPLETED}"
LOUD = ("--debug", "--verbose")


def calls(desk: Desk) -> list[SeenRequest]:
    """Return what the agent was asked, but for its card."""
    return [seen for seen in desk.seen() if seen.method != "card"]


def fetches(desk: Desk) -> list[SeenRequest]:
    """Return the requests for the card."""
    return desk.seen("card")


def all_of(seen: SeenRequest) -> str:
    """Return everything that came with a request."""
    return f"{seen.path} {seen.query} {seen.headers} {seen.body.decode()}"


# Certificates


class FolderAuthority:
    """Signs certificates into the folder of a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = Authority()
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._authority.pem)

    def sign(self, name: str) -> Files:
        """Return a certificate for a server or a client on this machine."""
        issued = self._authority.issue(LOOPBACK, common_name=name, uses=())
        return issued.save_files(self._folder, name)

    @contextmanager
    def sitting(self, agent: ScriptedAgent, *, asks: bool = False) -> Iterator[Desk]:
        """Give a desk with an agent over TLS; it may ask for the caller's certificate."""
        files = self.sign("server")
        place = ListenOptions(
            tls_cert=str(files.certificate),
            tls_key=str(files.key),
            client_ca=str(self.file) if asks else "",
        )
        with hosted(agent, place) as url:
            yield Desk(self._folder, url, agent)


def issued(kind: Any, **more: Any) -> tuple[ScriptedAgent, Issuer]:
    """Return an agent that takes what an issuer below it gives, and the issuer."""
    agent = demo(auth=kind)
    issuer = agent.issuer
    assert issuer is not None
    for name, value in ({"interval": 0.1} | more).items():
        setattr(issuer, name, value)
    return agent, issuer
