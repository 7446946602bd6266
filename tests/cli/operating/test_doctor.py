"""`dragoman doctor`: each thing that can be wrong is found, named and told what to do about."""

import asyncio
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from harness.commands import invoke as command
from harness.processes import run, running
from harness.serving import message
from harness.stub_servers import Answer, answering

from dragoman.cli.operating.checks.agent import NAMES as AGENT_NAMES
from dragoman.cli.operating.doctor import OF_A_FILE
from dragoman.model.push import PushConfig
from dragoman.stores.sqlite import SQLiteStore, schema
from dragoman.stores.sqlite.workers import machine_time
from dragoman.testing.promises.samples import HERE, creation, write

Doctor = Callable[..., dict[str, dict[str, Any]]]
AGENT = """
import asyncio
from dragoman import Agent

agent = Agent("Patient", "Is looked at.")

@agent.skill
async def forever(text: str):
    yield "begun"
    await asyncio.Event().wait()
"""


def now() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("DRAGOMAN_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("DRAGOMAN_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with one unfinished task that has a receiver, left in good order."""
    path = tmp_path / "tasks.db"

    async def fill() -> None:
        store = SQLiteStore(path)
        await store.open()
        number = await write(store, creation("t1", at=now()))
        config = PushConfig(id="p", url="https://hook.example/in?key=hush", token="hush")
        await store.put_push(number, config, 0, most=10)
        await store.close()

    asyncio.run(fill())
    return path


@pytest.fixture
def doctor(path: Path) -> Doctor:
    """Run it on the store; return the findings by their checks."""

    def examine(*arguments: str, store: Path = path) -> dict[str, dict[str, Any]]:
        ended = invoke("-o", "json", *arguments, store=store)
        assert ended.exit_code == 0, ended.output
        report = json.loads(ended.stdout)
        levels = [finding["level"] for finding in report["findings"]]
        assert report["summary"] == {
            level: levels.count(level) for level in ("ok", "warning", "problem")
        }
        for finding in report["findings"]:
            assert finding.keys() == {"check", "level", "message", "hint"}
            assert (finding["hint"] is None) == (finding["level"] == "ok"), finding
            assert "hush" not in finding["message"] + str(finding["hint"])
        return {finding["check"]: finding for finding in report["findings"]}

    return examine


def invoke(*arguments: str, store: Path) -> Any:
    return command("doctor", "--store", store, *arguments)


def change(path: Path, *statements: str) -> None:
    file = apsw.Connection(str(path))
    file.set_busy_timeout(5000)
    for statement in statements:
        file.execute(statement)
    file.close()


def only(doctor: Doctor, check: str) -> tuple[str, str]:
    found = doctor("--check", check)[check]
    return found["level"], found["message"]


def test_a_sound_store_has_a_finding_for_each_check_and_is_left_as_it_was(
    doctor: Doctor, path: Path
) -> None:
    before = path.read_bytes()
    found = doctor()
    assert list(found) == OF_A_FILE
    assert {finding["level"] for finding in found.values()} == {"ok"}, found
    assert "1 task," in found["store"]["message"]
    assert found["workers"]["message"] == "0 live, 0 frozen, 0 dead"
    assert path.read_bytes() == before


def test_people_get_a_line_for_each_check_and_hints_below(path: Path) -> None:
    path.chmod(0o644)
    shown = invoke("--check", "permissions", "--check", "journal", store=path)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "Check: journal",
        "Level: ok",
        "Finding: write-ahead log",
        "Check: permissions",
        "Level: problem",
        "Finding: everyone on this machine can open the file",
        f"Hint: chmod 600 {path}*",
        "Problems: 1",
        "Warnings: 0",
    ]


def test_only_a_strict_look_fails_and_only_for_a_problem(path: Path) -> None:
    path.chmod(0o640)
    assert invoke("--check", "permissions", "--strict", store=path).exit_code == 0
    path.chmod(0o604)
    assert invoke("--check", "permissions", store=path).exit_code == 0
    assert invoke("--check", "permissions", "--strict", store=path).exit_code == 1
    assert invoke("--check", "fortune", store=path).exit_code == 2


# The machine and the settings


def test_an_old_sqlite_is_a_problem(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    level, message = only(doctor, "install")
    assert level == "problem" and "3.51.3" in message


def test_a_variable_that_is_no_setting_is_named_without_its_value(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_LITSEN", "hush")
    found = doctor("--check", "configuration")["configuration"]
    assert found["level"] == "problem", "no server starts"
    assert "DRAGOMAN_LITSEN" in found["message"] and "DRAGOMAN_LISTEN" in found["message"]
    monkeypatch.delenv("DRAGOMAN_LITSEN")
    # The variable of an option of another command is one.
    monkeypatch.setenv("DRAGOMAN_SCENARIO", "hush")
    assert only(doctor, "configuration")[0] == "ok"


def test_settings_that_make_no_sense_do_not_hide_the_rest(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_LEASE", "long")
    found = doctor()
    assert found["configuration"]["level"] == "problem"
    assert "lease" in found["configuration"]["message"]
    assert found["store"]["level"] == "ok"


@pytest.mark.parametrize(
    ("name", "value", "without_push"),
    [
        ("PUSH_SECRET", "whsec_hush", "problem"),
        ("ALLOW", "http://x", "problem"),
        ("PUSH_TOKENS", "1", "ok"),
    ],
)
def test_settings_of_push_that_a_server_refuses_are_a_problem(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, name: str, value: str, without_push: str
) -> None:
    monkeypatch.setenv(f"DRAGOMAN_{name}", value)
    assert only(doctor, "configuration")[0] == "problem"
    # A value that makes no sense is refused by itself; what it needs, where it is used.
    monkeypatch.setenv("DRAGOMAN_PUSH", "off")
    assert only(doctor, "configuration")[0] == without_push


def test_connections_that_could_lose_commits_are_a_problem(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = schema.connect

    def careless(path: str, synchronous: str = "full") -> apsw.Connection:
        connection = connect(path, synchronous)
        connection.pragma("synchronous", "normal")
        return connection

    monkeypatch.setattr(schema, "connect", careless)
    level, message = only(doctor, "durability")
    assert level == "problem" and "power cut" in message


def test_settings_that_lose_tasks_are_found(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_SYNCHRONOUS", "normal")
    level, message = only(doctor, "durability")
    assert level == "problem" and "no server starts" in message
    monkeypatch.setenv("DRAGOMAN_SYNCHRONOUS", "off")
    level, message = only(doctor, "durability")
    assert level == "problem" and "synchronous off" in message
    monkeypatch.setenv("DRAGOMAN_ACCEPT_DATA_LOSS", "on")
    assert only(doctor, "durability")[0] == "warning"


def test_tasks_in_memory_are_a_warning(doctor: Doctor) -> None:
    found = doctor(store=Path("memory:"))
    assert found["durability"]["level"] == "warning"
    assert found["store"]["level"] == "ok" and "orphans" not in found


def test_a_port_in_use_is_a_warning(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("DRAGOMAN_LISTEN", str(taken.getsockname()[1]))
        assert only(doctor, "port")[0] == "warning"
    assert only(doctor, "port")[0] == "ok"
    monkeypatch.setenv("DRAGOMAN_LISTEN", "192.0.2.1")
    assert only(doctor, "port")[0] == "problem"


def test_a_clock_behind_the_newest_task_is_a_problem(doctor: Doctor, path: Path) -> None:
    change(path, f"UPDATE tasks SET status_at = {now() + 60_000}")
    level, message = only(doctor, "clock")
    assert level == "problem" and "behind" in message


# The file


def test_a_store_that_is_not_there_is_a_problem_only_if_it_was_named(
    doctor: Doctor, tmp_path: Path
) -> None:
    found = doctor("--check", "orphans", store=tmp_path / "no.db")
    assert list(found) == ["store"] and found["store"]["level"] == "problem"
    unnamed = command("doctor", "--strict", "--check", "store")
    assert unnamed.exit_code == 0 and "does not exist yet" in unnamed.stdout
    assert not (tmp_path / "no.db").exists() and not (tmp_path / "data").exists()


def test_a_file_that_is_no_store_is_a_problem(doctor: Doctor, tmp_path: Path, path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("not a database " * 100)
    other = tmp_path / "other.db"
    change(other, "CREATE TABLE t (x)")
    later = tmp_path / "later.db"
    shutil.copy(path, later)
    change(later, "PRAGMA user_version = 99")
    for store, reason in ((text, "not a SQLite"), (other, "not a store"), (later, "later")):
        found = doctor(store=store)["store"]
        assert found["level"] == "problem" and reason in found["message"]


def test_a_store_of_an_early_release_is_looked_at_as_far_as_it_goes(
    doctor: Doctor, tmp_path: Path
) -> None:
    early = tmp_path / "early.db"
    mark = f"PRAGMA application_id = {schema.APPLICATION_ID}"
    change(early, schema.migrations()[0][1], "PRAGMA user_version = 1", mark)
    found = doctor(store=early)
    assert found["store"]["level"] == "warning" and "schema 1" in found["store"]["message"]
    assert found["integrity"]["level"] == "ok" and "orphans" not in found
    assert list(doctor("--check", "orphans", store=early)) == ["store"]


def test_a_damaged_file_is_a_problem(doctor: Doctor, path: Path) -> None:
    file = apsw.Connection(str(path))
    page = file.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'tasks_by_id'").get
    size = file.pragma("page_size")
    file.close()
    with path.open("r+b") as raw:
        raw.seek((page - 1) * size)
        raw.write(b"\xff" * size)
    level, message = only(doctor, "integrity")
    assert level == "problem" and "damaged" in message


def test_another_journal_mode_is_a_warning(doctor: Doctor, path: Path) -> None:
    change(path, "PRAGMA journal_mode = delete")
    assert only(doctor, "journal") == (
        "warning",
        "the journal mode is delete, so readers and writers wait for each other",
    )


def test_little_space_is_a_warning_and_none_a_problem(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage("/"))
    for free, level in ((100_000_000, "warning"), (1_000_000, "problem")):
        left = usage(10**12, 10**12 - free, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, left=left: left)
        assert only(doctor, "space")[0] == level


# What is in it


def test_a_task_nobody_works_on_is_an_orphan_once_someone_should_have_taken_it(
    doctor: Doctor, path: Path
) -> None:
    assert only(doctor, "orphans") == ("ok", "1 unfinished task, none without a worker")
    change(path, f"UPDATE tasks SET status_at = {now() - 36_000}")
    level, message = only(doctor, "orphans")
    assert level == "problem" and message.startswith("1 unfinished task") and HERE.agent in message
    change(path, "UPDATE tasks SET state = 6")
    assert only(doctor, "orphans")[0] == "ok"


def test_messages_that_nobody_reads_are_a_warning(doctor: Doctor, path: Path) -> None:
    change(path, "INSERT INTO notes (task, body) VALUES (1, x'')")
    assert only(doctor, "notes")[0] == "warning"
    change(path, "UPDATE tasks SET state = 3")
    level, message = only(doctor, "notes")
    assert level == "warning" and "had ended" in message


def test_a_task_past_its_deadline_is_a_problem(doctor: Doctor, path: Path) -> None:
    change(path, f"INSERT INTO deadlines VALUES (1, {now() - 1000})")
    assert only(doctor, "deadlines")[0] == "ok"
    change(path, f"UPDATE deadlines SET at = {now() - 36_000}")
    assert only(doctor, "deadlines") == ("problem", "1 task should have ended by now")


def test_receivers_that_fail_are_counted_and_not_named(doctor: Doctor, path: Path) -> None:
    change(path, "UPDATE pushes SET failing_since = 5, problem = 'https://hook.example/?key=hush'")
    assert only(doctor, "pushes") == ("warning", "1 receiver failing, 0 given up")
    change(path, "UPDATE pushes SET is_open = 0")
    assert only(doctor, "pushes") == ("warning", "0 receivers failing, 1 given up")
    change(path, "UPDATE pushes SET cursor = 1")
    assert only(doctor, "pushes")[0] == "ok"
    old = f"UPDATE tasks SET status_at = {now() - 36_000}"
    change(path, "UPDATE pushes SET is_open = 1, cursor = 0", old)
    assert only(doctor, "pushes")[0] == "problem"


def test_what_is_said_of_receivers_is_what_can_be_done(doctor: Doctor, path: Path) -> None:
    change(path, "UPDATE pushes SET failing_since = 5")
    hint = doctor("--check", "pushes")["pushes"]["hint"]
    assert "by themselves" in hint and "replay" not in hint
    change(path, "UPDATE pushes SET is_open = 0")
    assert "`dragoman push replay`" in doctor("--check", "pushes")["pushes"]["hint"]


async def test_a_receiver_whose_live_server_leaves_it_waiting_is_a_problem(
    doctor: Doctor, path: Path
) -> None:
    store = SQLiteStore(path)
    await store.open()

    async def found() -> str:
        return (await asyncio.to_thread(only, doctor, "pushes"))[0]

    try:
        assert len(await store.claim_pushes(10)) == 1
        change(path, f"UPDATE tasks SET state = 3, status_at = {now() - 50_000}")
        assert await found() == "ok", "there is still time"
        change(path, f"UPDATE tasks SET status_at = {now() - 70_000}")
        assert await found() == "problem"
        change(path, f"UPDATE pushes SET due_at = {now() + 60_000}")
        assert await found() == "ok", "its time has not come"
        change(path, "UPDATE pushes SET due_at = 0", "UPDATE tasks SET state = 2")
        assert await found() == "ok", "what is not posted may be what 0.x does not post"
    finally:
        await store.close()


def test_dead_letters_are_counted_with_the_time_of_the_latest(doctor: Doctor, path: Path) -> None:
    change(
        path,
        "INSERT INTO dead_letters VALUES (1, 1, 10, 1767225600000, 'hush')",
        "INSERT INTO dead_letters VALUES (1, 2, 10, 1767225660000, 'hush')",
    )
    found = doctor("--check", "dead-letters")["dead-letters"]
    assert found["level"] == "warning" and "dragoman push list" in found["hint"]
    assert found["message"] == "2 events no receiver took, the latest of 2026-01-01T00:01:00Z"


# Servers


def test_a_server_is_seen_alive_frozen_and_dead_without_noticing(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "patient.py").write_text(AGENT)
    store = tmp_path / "served.db"
    with running(
        "serve", "patient.py", "--listen", "127.0.0.1:0", "--store", store, cwd=tmp_path
    ) as server:
        url = server.ready()
        body = {"message": message("go")}
        with (
            httpx.Client(trust_env=False, timeout=60) as http,
            http.stream("POST", f"{url}/message:stream", json=body) as stream,
        ):
            assert any("begun" in line for line in stream.iter_lines())
        monkeypatch.setenv("DRAGOMAN_LISTEN", url.rpartition(":")[2])
        # Long ago, but someone works on it.
        change(store, f"UPDATE tasks SET status_at = {now() - 100_000}")
        found = doctor(store=store)
        assert {finding["level"] for finding in found.values()} == {"ok"}, found
        assert found["workers"]["message"] == "1 live, 0 frozen, 0 dead"
        assert "a server runs" in found["port"]["message"]

        server.process.send_signal(signal.SIGSTOP)
        try:
            change(store, f"UPDATE workers SET expires = {machine_time() - 10_000}")
            found = doctor(store=store)
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert found["workers"]["level"] == found["orphans"]["level"] == "problem"
        assert "1 frozen" in found["workers"]["message"]

        server.process.kill()
        server.process.wait(60)
        files = (store, store.with_name("served.db-wal"))
        left = [file.read_bytes() for file in files]
        assert all(left)
        doctor(store=store)
        # Also what a crash left is left alone.
        assert [file.read_bytes() for file in files] == left
        # Its lease would have gone on: nobody is late yet in taking over.
        change(store, f"UPDATE workers SET expires = {machine_time() + 20_000}")
        found = doctor(store=store)
        assert found["workers"]["level"] == "warning" and "1 dead" in found["workers"]["message"]
        assert found["orphans"]["level"] == "ok"
        # A lease no process could have now: it is from before the machine started again.
        change(store, f"UPDATE workers SET expires = {machine_time() + 10**9}")
        assert doctor(store=store)["orphans"]["level"] == "problem"
        change(store, f"UPDATE workers SET expires = {machine_time() - 10_000}")
        assert doctor(store=store)["orphans"]["level"] == "problem"
        assert invoke("--strict", store=store).exit_code == 1


def test_an_agent_is_looked_at_without_giving_it_work(tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text(AGENT)
    store = ("--store", tmp_path / "tasks.db")
    with running("serve", "patient.py", "--listen", "127.0.0.1:0", *store, cwd=tmp_path) as server:
        url = server.ready()
        found = run("doctor", url, *store, "-o", "json", "--strict", cwd=tmp_path)
        assert found.returncode == 0, found.stdout + found.stderr
        by_check = {one["check"]: one for one in json.loads(found.stdout)["findings"]}
        assert list(by_check)[-len(AGENT_NAMES) :] == AGENT_NAMES
        assert {by_check[name]["level"] for name in AGENT_NAMES} == {"ok"}, by_check
        assert "Patient" in by_check["agent-card"]["message"]
        assert by_check["agent-version"]["message"].startswith("1.0 over JSONRPC")
        assert by_check["agent-signature"]["message"] == "absent"
        assert httpx.get(f"{url}/tasks", trust_env=False).json()["totalSize"] == 0
        server.stop()
    gone = run("doctor", url, "--check", "agent-version", "--strict", cwd=tmp_path)
    assert gone.returncode == 1
    assert "Check: agent-card\nLevel: problem\n" in gone.stdout and "Hint: " in gone.stdout


@contextmanager
def almost(path: str, value: Any) -> Iterator[str]:
    """Serve a card of 0.3 over REST, and one thing for all else; yields the address."""
    url = ""

    def answer(method: str, place: str, headers: dict[str, str], body: bytes) -> Answer:
        is_card = place.endswith("/agent-card.json")
        content = json.dumps(OLD_CARD | {"url": f"{url}{path}"} if is_card else value).encode()
        return 200 if is_card else 404, {"content-type": "application/json"}, content

    with answering(answer) as port:
        url = f"http://127.0.0.1:{port}"
        yield url


OLD_CARD = {
    "protocolVersion": "0.3.0",
    "name": "Almost",
    "description": "Speaks almost A2A.",
    "version": "1",
    "preferredTransport": "HTTP+JSON",
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [],
}


@pytest.mark.parametrize(
    ("path", "value", "level", "words"),
    [
        ("", {"code": -32001, "message": "Task not found"}, "ok", "as its version has it"),
        ("", {"message": "Task not found"}, "warning", "base64 text"),
        ("/v1", {"code": -32001, "message": "Task not found"}, "warning", "ends with the /v1"),
        ("", {"detail": "Not Found"}, "problem", "There is no A2A at this address"),
    ],
)
def test_what_of_an_agent_is_read_leniently_is_said(
    path: str, value: Any, level: str, words: str, tmp_path: Path
) -> None:
    with almost(path, value) as url:
        how = ("--a2a-version", "0.3", "--check", "agent-answers", "-o", "json")
        found = run("doctor", "--agent", url, *how, cwd=tmp_path)
    (finding,) = json.loads(found.stdout)["findings"]
    assert (finding["check"], finding["level"]) == ("agent-answers", level), finding
    assert words in finding["message"]


def test_a_card_of_a_stranger_is_found_wanting(tmp_path: Path) -> None:
    card = {
        "name": "Broken",
        "version": "1",
        "supportedInterfaces": [
            {
                "url": "http://127.0.0.1:9/",
                "protocolBinding": "JSONRPC",
                "protocolVersion": "0.3",
            }
        ],
        "securitySchemes": {"key": {"apiKeySecurityScheme": {"location": "header", "name": "X"}}},
        "securityRequirements": [{"schemes": {"key": {"list": []}}}],
    }
    (tmp_path / "card.json").write_text(json.dumps(card))
    found = run("doctor", "./card.json", "-o", "json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    levels = {one["check"]: one for one in json.loads(found.stdout)["findings"]}
    assert levels["agent-card"]["level"] == "ok"
    assert levels["agent-valid"]["level"] == "warning"
    assert "description" in levels["agent-valid"]["message"]
    assert levels["agent-version"]["level"] == "ok"
    assert levels["agent-version"]["message"].endswith(", and nothing newer")
    assert levels["agent-interfaces"]["level"] == "problem"
    assert levels["agent-credentials"]["level"] == "problem"
    two = run("doctor", "./card.json", "--agent", "./other.json", cwd=tmp_path)
    assert two.returncode == 2 and "name two" in two.stderr
    check = ("--check", "agent-version", "--strict-version", "-o", "json")
    strict = json.loads(run("doctor", "./card.json", *check, cwd=tmp_path).stdout)["findings"]
    (version,) = (one for one in strict if one["check"] == "agent-version")
    assert (version["level"], version["hint"]) == ("problem", "--a2a-version 0.3")
    nobody = run("doctor", "--check", "agent-card", cwd=tmp_path)
    assert nobody.returncode == 2 and "which agent" in nobody.stderr
