"""`dragoman store`, and every tool that looks into a store, on a PostgreSQL database."""

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from harness.commands import invoke
from harness.databases import Databases
from harness.processes import environment, run, running
from harness.waiting import wait_until, within

from dragoman.config import data_folder
from dragoman.stores.postgres import Addresses
from dragoman.stores.postgres.connections import DatabaseConnections
from dragoman.testing.processes import ServerProcess
from tests.stores.copying.filled import TASKS, fill, unseal

HELLO = "hello database"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", environment(tmp_path)["XDG_DATA_HOME"])
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def url(databases: Databases) -> str:
    return databases.make()


def shown(*words: str | Path, exit_code: int = 0) -> Any:
    found = invoke(*words, "-o", "json")
    assert found.exit_code == exit_code, (words, found.output)
    return json.loads(found.stdout) if found.stdout else told(found)


def told(found: Result) -> str:
    return found.stderr


@pytest.fixture
def gateway(url: str, tmp_path: Path) -> Iterator[ServerProcess]:
    with running("up", "--listen", "127.0.0.1:0", "--store", url, cwd=tmp_path) as server:
        server.ready()
        yield server


def test_every_tool_looks_into_a_database(url: str, gateway: ServerProcess) -> None:
    there = gateway.url
    sent = shown("send", "-a", there, HELLO)["task"]
    with_store = ("--store", url)
    tasks = shown("tasks", "list", *with_store)["items"]
    assert sent["id"] in [one["id"] for one in tasks]
    assert shown("tasks", "show", sent["id"], "--agent", "gateway", *with_store)["id"] == sent["id"]
    assert shown("tasks", "tree", sent["id"], *with_store)["children"]
    tail = shown("tasks", "tail", "--task-id", sent["id"], *with_store)
    assert HELLO in json.dumps(tail)
    assert shown("tasks", "tail", "--since", tail["nextPageToken"], *with_store)["items"] == []

    assert {one["account"] for one in shown("ledger", "balance", *with_store)["items"]}
    assert shown("ledger", "verify", *with_store)["result"] == "ok"
    assert invoke("ledger", "export", *with_store).exit_code == 0
    (agent,) = shown("trust", "list", *with_store)["items"]
    assert shown("trust", "show", agent["agentName"], *with_store)["agentId"] == agent["agentId"]
    assert shown("trust", "verify", *with_store)["result"] == "ok"
    assert shown("trust", "disputes", *with_store)["items"] == []

    assert shown("push", "list", *with_store)["items"] == []
    assert shown("push", "secret", *with_store)["secrets"][0].startswith("whsec_")
    assert shown("keys", "list", *with_store)["items"] == []
    (key,) = shown("vault", "show", *with_store)["keys"]
    assert key["state"] == "current" and key["atHand"]
    assert shown("store", "check", *with_store)["result"] == "ok"
    status = shown("store", "status", *with_store)
    assert (status["kind"], status["workersLive"], status["unfinished"]) == ("postgresql", 1, 0)
    findings = {one["check"]: one for one in shown("doctor", *with_store)["findings"]}
    assert {"database", "replication", "room", "vacuum", "workers"} <= findings.keys()
    problems = [one for one in findings.values() if one["level"] == "problem"]
    assert problems == []

    # Another machine may not have the new key.
    refused = told(invoke("vault", "rotate", *with_store))
    assert "servers run on this database, maybe on other machines" in refused


# Words, and what the answer has: items that are there, or a result.
_OF_A_STORE = (
    ("tasks list", "items"),
    ("tasks tail", "items"),
    ("tasks show TASK --agent gateway", "status"),
    ("tasks tree TASK", "children"),
    ("ledger balance", "items"),
    ("ledger statement", "items"),
    ("ledger verify", "result"),
    ("trust list", "items"),
    ("trust show AGENT", "agentId"),
    ("trust explain AGENT", "explanation"),
    ("trust verify", "result"),
    ("push secret", "secrets"),
    ("inbox list", "items"),
    ("keys list", "items"),
)
# Those that a gateway answers too; what signatures are made with it does not send.
_OF_BOTH = [words for words, _ in _OF_A_STORE if words != "push secret"] + [
    "ledger show 1",
    "tasks tail --stream --task-id TASK",
    "ledger balance --owner OWNER",
    "ledger statement --owner OWNER --holds",
    "ledger export",
    "trust disputes",
    "push list",
    "keys show KEY",
    "inbox show QUESTION",
]
# What a gateway that runs elsewhere tells of the caller's own.
_OF_A_GATEWAY = (
    ("task list -a URL", "tasks"),
    ("task get TASK -a URL", "status"),
    ("credits balance --gateway URL", "available"),
    ("credits statement --gateway URL", "items"),
    ("trust show AGENT --gateway URL", "agentId"),
    ("trust explain AGENT --gateway URL", "explanation"),
    ("inbox list -a URL", "items"),
)


@pytest.mark.parametrize("kind", ["file", "database"])
def test_each_tool_works_on_each_store_and_at_a_gateway(
    kind: str, databases: Databases, tmp_path: Path
) -> None:
    store = databases.make() if kind == "database" else str(tmp_path / "gateway.db")
    key = shown("keys", "create", "--owner", "someone")["id"]
    with running("up", "--listen", "127.0.0.1:0", "--store", store, cwd=tmp_path) as server:
        there = server.ready()
        sent = shown("send", "-a", there, HELLO)["task"]
        asked = shown("send", "-a", there, "--data", '{"item": "tea"}', "--skill", "order")["task"]
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        (agent,) = shown("trust", "list", "--store", store)["items"]
        names = {"TASK": sent["id"], "AGENT": agent["agentName"], "URL": there}
        # A caller has an account, and something on its statement, from when it asks for it.
        for words, field in (*_OF_A_GATEWAY, *_OF_A_STORE):
            typed = [names.get(word, word) for word in words.split()]
            is_here = (words, field) in _OF_A_STORE
            found = shown(*typed, *(("--store", store) if is_here else ()))
            assert found[field], (words, found)
        assert [one["id"] for one in shown("keys", "list", "--store", store)["items"]] == [key]
        assert shown("push", "list", "--store", store)["items"] == []
        names |= {"OWNER": "", "KEY": key, "QUESTION": asked["id"]}
        for words in _OF_BOTH:
            typed = [names.get(word, word) for word in words.split()]
            for form in ("json", "text"):
                here = invoke(*typed, "--store", store, "-o", form)
                elsewhere = invoke(*typed, "--gateway", there, "-o", form)
                assert elsewhere.exit_code == here.exit_code == 0, (words, elsewhere.output)
                assert elsewhere.stdout == here.stdout, words


@pytest.mark.parametrize("kind", ["file", "database"])
def test_operators_act_at_a_gateway_elsewhere_and_others_do_not(
    kind: str, databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = databases.make() if kind == "database" else str(tmp_path / "gateway.db")
    chief = shown("keys", "create", "--owner", "chief", "--scope", "dragoman:operator")
    guest = shown("keys", "create", "--owner", "guest")
    options = ("--auth", "api-key", "--keys", chief["file"])
    with running("up", "--listen", "127.0.0.1:0", "--store", store, *options, cwd=tmp_path) as up:
        there = ("--gateway", up.ready())
        monkeypatch.setenv("A2ACLI_API_KEY", guest["key"])
        asked = shown("send", "-a", up.url, "--data", '{"item": "tea"}', "--skill", "order")["task"]
        for words in (
            "tasks list",
            "ledger balance",
            "trust list",
            "push list",
            "push replay --all",
            "keys list",
            "keys create --owner mallory --scope dragoman:operator",
            f"keys revoke {chief['id']} --yes",
            f"keys rotate {chief['id']}",
            f"inbox answer {asked['id']} yes",
        ):
            refused = invoke(*words.split(), *there, "-o", "json")
            assert refused.exit_code != 0 and "dragoman:operator" in refused.output, words
        monkeypatch.setenv("A2ACLI_API_KEY", chief["key"])

        made = shown("keys", "create", "--owner", "bot", "--expires", "2h", *there)
        assert made["key"].startswith("dgm_") and made["gateway"] == up.url
        heir = shown("keys", "rotate", made["id"], "--overlap", "1h", *there)
        assert heir["replaces"] == made["id"] and heir["owner"] == "bot"
        again = invoke("keys", "rotate", made["id"], *there)
        assert again.exit_code != 0 and "was rotated before" in again.output
        assert shown("keys", "revoke", heir["id"], "--yes", *there)["state"] == "revoked"
        listed = {one["id"]: one["state"] for one in shown("keys", "list", *there)["items"]}
        assert listed[heir["id"]] == "revoked" and listed[made["id"]] == "active"
        assert invoke("keys", "show", "zzzz", *there).exit_code != 0

        (question, *_) = shown("inbox", "list", *there)["items"]
        answered = shown("inbox", "answer", question["id"], "--decline", "no", *there)
        assert answered["result"] == "answered"
        acts = [one["act"] for one in shown("audit", "list", "--store", store)["items"]]
        assert {"key.create", "key.rotate", "key.revoke", "console.store.read"} <= set(acts)


def test_a_question_of_a_task_in_a_database_is_answered_by_the_inbox(
    url: str, gateway: ServerProcess
) -> None:
    asked = shown("send", "-a", gateway.url, "--data", '{"item": "tea"}', "--skill", "order")
    waiting = shown("inbox", "list", "--store", url)["items"]
    task = asked["task"]["id"]
    assert task in [one["taskId"] for one in waiting]
    answer = shown("inbox", "answer", task, "--decline", "no", "--store", url)
    assert answer["result"] == "answered"


def test_a_gateway_moves_from_a_file_to_a_database_and_goes_on(url: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    with running("up", "--listen", "127.0.0.1:0", "--store", file, cwd=tmp_path) as server:
        before = shown("send", "-a", server.ready(), HELLO)["task"]
        refused = told(invoke("store", "copy", file, url))
        assert "serve from the source; stop them first" in refused
    secret = shown("push", "secret", "--store", file)
    copied = shown("store", "copy", file, url)
    assert copied["rows"]["tasks"] == 2 and not copied["resumed"]
    assert Path(copied["keyFile"]).parent == data_folder()
    assert shown("store", "check", "--store", url)["result"] == "ok"
    # What is sealed is opened by the same key.
    assert shown("push", "secret", "--store", url) == secret
    with running("up", "--listen", "127.0.0.1:0", "--store", url, cwd=tmp_path) as server:
        there = server.ready()
        after = shown("task", "get", before["id"], "-a", there)
        assert (after["id"], after["status"]) == (before["id"], before["status"])
        shown("send", "-a", there, "and on")
    back = tmp_path / "back.db"
    assert shown("store", "copy", url, back)["rows"]["tasks"] == 4
    assert shown("store", "check", "--store", back)["result"] == "ok"
    assert shown("ledger", "verify", "--store", back)["result"] == "ok"
    assert shown("trust", "verify", "--store", back)["result"] == "ok"


def test_another_machine_is_told_which_key_it_needs(url: str, tmp_path: Path) -> None:
    assert shown("store", "migrate", "--store", url)["result"] == "ok"
    (key,) = data_folder().glob("*.key")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(key, elsewhere)
    words = told(invoke("store", "migrate", "--store", url))
    assert "is sealed with key" in words
    assert f"copy the key file of this store from a machine that serves it to {key}" in words
    shutil.copy(elsewhere, key)
    assert shown("store", "migrate", "--store", url)["result"] == "ok"


def test_a_password_is_not_shown(databases: Databases, tmp_path: Path) -> None:
    url = databases.make().replace("postgres@", "postgres:s3cr3t-word@")
    (tmp_path / "url").write_text(url)
    for words in (
        ("store", "status", "--store", url),
        ("store", "migrate", "--store", url),
        ("doctor", "--store", url),
        ("store", "status", "--store", url.rpartition("/")[0] + "/there_is_none"),
        ("tasks", "list", "--store", "postgresql://ada:s3cr3t-word@127.0.0.1:1/x"),
        ("config", "show"),
        ("--debug", "tasks", "list", "--store", url),
    ):
        found = invoke(*words)
        assert "s3cr3t" not in found.output, words
    log = "".join(path.read_text() for path in data_folder().glob("*.jsonl"))
    assert "s3cr3t" not in log


def test_doctor_says_what_is_wrong_with_a_database(
    url: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(check: str) -> tuple[str, str]:
        (one,) = shown("doctor", "--check", check, "--store", url)["findings"]
        return one["level"], one["message"]

    level, said = found("store")
    assert level == "ok" and "0 tasks" in said
    assert found("database")[0] == "ok"
    name = url.rpartition("/")[2]
    databases.server.sql(f"ALTER DATABASE {name} SET statement_timeout = '5s'")
    # Servers switch it off where they can.
    assert found("database")[0] == "ok"
    monkeypatch.setenv("DRAGOMAN_STORE_SESSION_URL", url + "?application_name=direct")
    level, said = found("database")
    assert level == "warning" and "statement_timeout" in said
    databases.server.sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    level, said = found("database")
    assert level == "problem" and "synchronous_commit = off" in said
    databases.server.sql(
        "INSERT INTO transfers (id, kind, at, legs) VALUES ('x', 'hold', 0, '[]')", name
    )
    level, said = found("ledger")
    assert level == "warning" and "1 transfer of the ledger not sealed" in said
    (one,) = shown("doctor", "--check", "workers", "--store", "postgresql://127.0.0.1:1/x")[
        "findings"
    ]
    assert one["check"] == "store" and "cannot be reached" in one["message"]


def test_without_the_driver_the_command_says_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if re.match(r"asyncpg|dragoman\.stores\.pos", name)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    for words in (("tasks", "list"), ("store", "status"), ("doctor", "--check", "store")):
        assert "pip install 'dragoman[postgres]'" in invoke(*words, "--store", url).output, words


def test_a_file_has_a_status_and_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    with running("up", "--listen", "127.0.0.1:0", "--store", file, cwd=tmp_path) as server:
        shown("send", "-a", server.ready(), HELLO)
        status = shown("store", "status", "--store", file)
        assert (status["kind"], status["tasks"], status["workersLive"]) == ("sqlite", 2, 1)
        assert shown("store", "check", "--store", file)["result"] == "ok"
    people = invoke("store", "status", "--store", file).stdout.splitlines()
    assert people[:2] == [f"Store: {file}", "Kind: sqlite"] and "Workers-Live: 0" in people


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("store", "copy", "memory:", "x.db"), "memory: cannot be copied"),
        (("store", "copy", "x.db", "x.db"), "FROM and TO are the same"),
        (("store", "copy", "x.db", "postgresql://127.0.0.1:1/x"), "x.db"),
        (("backup", "copy.db", "--store", "postgresql://h/d"), "PostgreSQL's own tools"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(words: tuple[str, ...], said: str) -> None:
    found = invoke(*words)
    assert found.exit_code and said in found.stderr


_WAIT_AT_THE_LAST_TABLE = """
CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(77); RETURN NEW; END $$;
CREATE TRIGGER waits BEFORE INSERT ON disputes FOR EACH ROW EXECUTE FUNCTION wait_here();
"""
_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
_COPIERS = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%' AND state <> 'idle'"


async def test_a_copy_that_is_killed_goes_on_where_it_was(
    url: str, databases: Databases, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.db"
    fill(file)
    unseal(file)
    name = url.rpartition("/")[2]

    def has_one(sql: str, number: str = "1") -> bool:
        return databases.server.sql(sql, name) == number

    connections = DatabaseConnections(Addresses(url))
    await connections.open()
    async with connections.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock(77)")
        await asyncio.to_thread(databases.server.sql, _WAIT_AT_THE_LAST_TABLE, name)
        command = [sys.executable, "-m", "dragoman", "store", "copy", str(file), url]
        copying = await asyncio.create_subprocess_exec(
            *command, env=environment(tmp_path), cwd=tmp_path
        )
        await asyncio.to_thread(wait_until, lambda: has_one(_WAITING))
        copying.kill()
        await within(copying.wait())
    await connections.close()
    # The server finds out by itself that its client is gone.
    await asyncio.to_thread(wait_until, lambda: has_one(_COPIERS, "0"))
    words = ("store", "migrate", "--store", url)
    refused = await asyncio.to_thread(run, *words, cwd=tmp_path)
    assert "a copy into this database was cut off" in refused.stderr
    words = ("store", "copy", str(file), url, "-o", "json")
    copied = json.loads((await asyncio.to_thread(run, *words, cwd=tmp_path)).stdout)
    assert copied["resumed"] and copied["rows"]["tasks"] == len(TASKS)
