"""Exit codes: whether the command did its job, in agreement with the code of its error."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.cli.failures import EXITS
from tests.cli.requirements.desk import Desk, sitting, together

DOWN = "A2ACLI_ERR_UNREACHABLE"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with sitting(tmp_path_factory.mktemp("guarded"), auth="bearer") as found:
        yield found


def nobody() -> str:
    """Return an address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.cli("A2ACLI_EXIT_001")
def test_every_condition_has_its_code_and_its_exit(desk: Desk, guarded: Desk) -> None:
    (desk.folder / "list.json").write_text("[]")
    (desk.folder / "text.json").write_text("no JSON")
    (desk.folder / "file").write_text("")
    done = desk.json("send", "parts")["task"]["id"]
    # Where, which words, about which agent, the code, the exit.
    table = [
        (desk, ("send",), None, "A2ACLI_ERR_USAGE", 2),
        (desk, ("send", "x", "--async", "--wait"), None, "A2ACLI_ERR_USAGE", 2),
        (desk, ("send", "x", "--async", "--stream"), None, "A2ACLI_ERR_USAGE", 2),
        (desk, ("send", "x", "--poll-interval", "50ms"), None, "A2ACLI_ERR_USAGE", 2),
        (desk, ("send", "x", "--metadata", "[]"), None, "A2ACLI_ERR_USAGE", 2),
        (desk, ("send", "x"), "", "A2ACLI_ERR_USAGE", 2),
        (desk, ("send", "x"), desk.url + "/nowhere", "A2ACLI_ERR_CARD_NOT_FOUND", 3),
        (desk, ("send", "x"), "./missing.json", "A2ACLI_ERR_CARD_NOT_FOUND", 3),
        (desk, ("send", "x"), "@nobody", "A2ACLI_ERR_CARD_NOT_FOUND", 3),
        (desk, ("send", "x"), "./list.json", "A2ACLI_ERR_CARD_INVALID", 1),
        (desk, ("send", "x"), "./text.json", "A2ACLI_ERR_CARD_INVALID", 1),
        (desk, ("send", "x"), nobody(), DOWN, 3),
        (desk, ("send", "x"), desk.url.replace("http", "https"), DOWN, 3),
        (desk, ("send", "error Overloaded"), None, DOWN, 3),
        (guarded, ("send", "x"), None, "A2ACLI_ERR_CREDENTIALS_MISSING", 4),
        (guarded, ("send", "x", "--bearer", "wrong"), None, "A2ACLI_ERR_AUTH_FAILED", 4),
        (desk, ("send", "hang", "--timeout", "700ms"), None, "A2ACLI_ERR_TIMEOUT", 5),
        (desk, ("task", "download", done, "--output-dir", "file"), None, "A2ACLI_ERR_INTERNAL", 1),
        (desk, ("task", "get", "no-such-task"), None, "TaskNotFoundError", 1),
        (desk, ("send", "html"), None, "InvalidAgentResponseError", 1),
    ]
    works = [
        lambda row=row: row[0].run(*row[1], "-o", "json", a=row[2], exit=None) for row in table
    ]
    found = [ended for start in range(0, len(works), 10) for ended in together(*works[start:][:10])]
    for (_, words, ref, code, exit), ended in zip(table, found, strict=True):
        assert (ended.error["code"], ended.exit) == (code, exit), (words, ref, ended)
        assert set(ended.error) == {"code", "message", "hint", "a2aCode"}
        assert EXITS.get(code, 1) == exit
    assert found[-1].error["a2aCode"] is None
    assert {row[3] for row in table} >= {*EXITS}, "each code that is reserved was provoked"


@pytest.mark.cli("A2ACLI_EXIT_001")
def test_in_text_an_error_stands_on_stderr_alone(desk: Desk) -> None:
    failed = desk.run("send", "x", a="./missing.json", exit=3)
    assert failed.out == "" and failed.err.startswith("Error: A2ACLI_ERR_CARD_NOT_FOUND\nMessage: ")


@pytest.mark.cli("A2ACLI_EXIT_002")
def test_how_a_task_ends_is_a_warning_and_no_exit(desk: Desk, tmp_path: Path) -> None:
    ends = {
        "fail": "TASK_STATE_FAILED",
        "reject": "TASK_STATE_REJECTED",
        "cancel": "TASK_STATE_CANCELED",
        "ask": "TASK_STATE_INPUT_REQUIRED",
        "auth": "TASK_STATE_AUTH_REQUIRED",
    }
    works = [lambda word=word: desk.run("send", word, "-o", "json") for word in ends]
    for (word, state), ended in zip(ends.items(), together(*works), strict=True):
        task = ended.json["task"]
        assert task["status"]["state"] == state, word
        assert f"Warning: task {task['id']} " in ended.err and state in ended.err
    fine = desk.run("send", "echo x")
    assert "Warning" not in fine.err
    # Who asks for an end is not warned of it.
    assert "Warning" not in desk.run("task", "cancel", desk.begin("hang")[0]).err
    assert "Warning" in desk.run("send", "fail", "--stream").err
