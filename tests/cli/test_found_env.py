"""A `.env` that was only found does not decide where the user's credentials go."""

import io
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.cli.command import Ended, inside

SECRET = "s3cret-of-the-user"
AGENT = "A2ACLI_AGENT_CARD"


class Trap:
    """A place that a file leads to; it keeps what is sent there."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.heard: list[bytes] = []

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(60)
                self.heard.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def trap() -> Generator[Trap]:
    found = Trap()
    thread = threading.Thread(target=found.serve)
    thread.start()
    try:
        yield found
    finally:
        found.close()
        thread.join(60)


def written(folder: Path, **values: str) -> Path:
    """Write a `.env` in a project, and return a folder below it: files above are found too."""
    file = folder / "project" / ".env"
    (file.parent / "below").mkdir(parents=True)
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    file.chmod(0o600)
    return file.parent / "below"


def told(ended: Ended, name: str) -> None:
    assert f".env was found here and says {name}" in ended.stderr, ended.stderr
    assert SECRET not in ended.stderr + ended.stdout


EXPORTED = [
    {"A2ACLI_BEARER": SECRET},
    {"A2ACLI_API_KEY": SECRET},
    {"A2ACLI_SVC_PARAM": f"X-Key:{SECRET}"},
]


@pytest.mark.parametrize("env", EXPORTED, ids=lambda env: next(iter(env)))
@pytest.mark.parametrize(
    "words",
    [("send", "hi"), ("card", "get"), ("task", "list"), ("task", "get", "t"), ("doctor",)],
    ids=" ".join,
)
def test_an_exported_credential_does_not_go_where_a_found_file_says(
    words: tuple[str, ...], env: dict[str, str], tmp_path: Path
) -> None:
    with trap() as place:
        folder = written(tmp_path, **{AGENT: place.place})
        if words == ("doctor",):
            words = ("doctor", "--check", "agent-card")
        ended = inside(*words, cwd=folder, env=env)
    assert place.heard == [], "nothing is sent before the user was asked"
    if words[0] != "doctor":
        assert ended.returncode == 2
        told(ended, AGENT)
        assert "nothing was sent" in ended.stderr and "--config" in ended.stderr


def test_a_credential_of_the_global_file_does_not_go_there_either(tmp_path: Path) -> None:
    with trap() as place:
        folder = written(tmp_path, **{AGENT: place.place})
        config = folder / "config" / "a2a-cli" / ".env"
        config.parent.mkdir(parents=True)
        config.write_text(f"A2ACLI_BEARER={SECRET}\n")
        config.chmod(0o600)
        ended = inside("send", "hi", cwd=folder)
    assert place.heard == [] and ended.returncode == 2
    told(ended, AGENT)


def test_a_gateway_and_a_catalog_of_a_found_file_get_no_credential(tmp_path: Path) -> None:
    with trap() as place:
        url = f"http://{place.place}"
        folder = written(tmp_path, DRAGOMAN_GATEWAY=url, DRAGOMAN_CATALOG=f"{url}/catalog")
        for env in (*EXPORTED[:2], {"DRAGOMAN_ADMIN_TOKEN": SECRET}):
            ended = inside("agents", "list", cwd=folder, env=env)
            assert ended.returncode == 2
            told(ended, "DRAGOMAN_GATEWAY")
        ended = inside("send", "hi", "-a", "@weather", cwd=folder, env=EXPORTED[0])
        assert ended.returncode == 2
        told(ended, "DRAGOMAN_CATALOG")
    assert place.heard == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("INSECURE", "true"), ("TRUST_ORIGIN", "https://evil.example"), ("CA_CERT", "evil.pem")],
)
def test_a_found_file_does_not_take_the_protection_of_a_credential_away(
    name: str, value: str, tmp_path: Path
) -> None:
    with trap() as place:
        folder = written(tmp_path, **{f"A2ACLI_{name}": value})
        words = ("send", "hi", "-a", place.place)
        ended = inside(*words, cwd=folder, env=EXPORTED[0])
    assert place.heard == [] and ended.returncode == 2
    told(ended, f"A2ACLI_{name}")


def test_the_secret_of_a_client_goes_to_no_issuer_of_a_found_file(tmp_path: Path) -> None:
    with trap() as place:
        folder = written(tmp_path, **{AGENT: place.place})
        env = {"A2ACLI_CLIENT_ID": "me", "A2ACLI_CLIENT_SECRET": SECRET}
        ended = inside("auth", "login", cwd=folder, env=env)
    assert place.heard == [] and ended.returncode == 2
    told(ended, AGENT)


def test_what_a_collector_is_shown_goes_to_none_of_a_found_file(tmp_path: Path) -> None:
    folder = written(tmp_path, DRAGOMAN_OTLP_ENDPOINT="https://evil.example")
    env = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {SECRET}"}
    ended = inside("serve", "--exec", "cat", "--listen", "127.0.0.1:0", cwd=folder, env=env)
    assert ended.returncode == 2
    told(ended, "DRAGOMAN_OTLP_ENDPOINT")


def goes_there(ended: Ended, place: Trap) -> bool:
    return bool(place.heard) and "nothing was sent" not in ended.stderr


def test_the_user_means_it_by_naming_the_file_or_the_address(tmp_path: Path) -> None:
    with trap() as place:
        folder = written(tmp_path, **{AGENT: place.place})
        file = folder.parent / ".env"
        for words, env in (
            (("--config", str(file)), {}),
            ((), {"A2ACLI_CONFIG": str(file)}),
            (("-a", place.place), {}),
            ((), {AGENT: place.place}),
        ):
            place.heard.clear()
            ended = inside("card", "get", *words, cwd=folder, env=EXPORTED[0] | env)
            assert goes_there(ended, place), ended.stderr
            assert "was found here" not in ended.stderr


def test_a_file_decides_about_its_own_credential_and_where_there_is_none(tmp_path: Path) -> None:
    with trap() as place:
        folder = written(tmp_path, **{AGENT: place.place, "A2ACLI_BEARER": SECRET})
        ended = inside("card", "get", cwd=folder)
        assert goes_there(ended, place) and "was found here" not in ended.stderr
    other = tmp_path / "other"
    with trap() as place:
        folder = written(other, **{AGENT: place.place})
        ended = inside("card", "get", cwd=folder)
        assert goes_there(ended, place) and "was found here" not in ended.stderr


def test_a_credential_that_was_typed_goes_there_and_the_user_is_told(tmp_path: Path) -> None:
    with trap() as place:
        folder = written(tmp_path, **{AGENT: place.place})
        ended = inside("card", "get", "--bearer", SECRET, cwd=folder)
        assert goes_there(ended, place)
    told(ended, AGENT)


@pytest.mark.parametrize(("answer", "goes"), [("y\n", True), ("yes\n", True), ("n\n", False)])
def test_a_person_at_a_terminal_is_asked(answer: str, goes: bool, tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    from dragoman.cli import found_env

    asked: list[Any] = []

    def at_terminal(stream: Any) -> bool:
        asked.append(stream)
        sys.stdin = Terminal(answer)
        return True

    with trap() as place, mock.patch.object(found_env, "is_terminal", at_terminal):
        folder = written(tmp_path, **{AGENT: place.place})
        ended = inside("card", "get", cwd=folder, env=EXPORTED[0])
        assert bool(place.heard) is goes
    told(ended, AGENT)
    assert "Send it there? [y/N]" in ended.stderr and len(asked) == 2


def test_what_a_file_says_is_told_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    folder = written(tmp_path, **{AGENT: "evil.example/\x1b]0;title\x07\u202e"})
    ended = inside("card", "get", cwd=folder, env=EXPORTED[0])
    assert ended.returncode == 2
    assert not {"\x1b", "\x07", "\u202e"} & {*ended.stderr}
