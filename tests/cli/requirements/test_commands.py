"""The command itself: help, completion, the skill, conformance, the demo agent, downloads."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from harness.processes import ROOT, running

from dragoman.testing.scripted.agent import ScriptedAgent
from tests.cli.requirements.desk import Desk, sitting, together

SHELLS = {
    "bash": ("bash", "-n"),
    "zsh": ("zsh", "-n"),
    "fish": ("fish", "--no-execute"),
    "powershell": ("pwsh", "-NoProfile", "-File"),
}


def said(page: str) -> str:
    """Return a page without its line ends: where a line is wrapped is of no interest."""
    return " ".join(page.split())


@pytest.mark.cli("A2ACLI_CLI_001")
def test_short_help_says_what_is_not_the_default_and_where_it_comes_from(desk: Desk) -> None:
    page = desk.run("send", "--help", a="", env={"A2ACLI_OUTPUT": "json"}).out
    assert "--output json (from A2ACLI_OUTPUT)" in page and "dragoman send --help --all" in page
    assert "A2ACLI_BEARER" not in page and len(page.splitlines()) < 40


@pytest.mark.cli("A2ACLI_CLI_001")
def test_help_and_version_go_to_stdout_and_show_the_values_that_hold(desk: Desk) -> None:
    plain, configured, version, short, by_word, by_flag = together(
        lambda: desk.run("send", "--help", "--all", a=""),
        lambda: desk.run("send", "--help", "--all", a="", env={"A2ACLI_OUTPUT": "json"}),
        lambda: desk.run("--version", a=""),
        lambda: desk.run("-v", a=""),
        lambda: desk.run("help", "task", "get", a=""),
        lambda: desk.run("task", "get", "-h", a=""),
    )
    about = "Format of stdout; on a terminal lists are tables. $A2ACLI_OUTPUT."
    assert f"{about} [default: text]" in said(plain.out)
    assert f"{about} [default: json (from A2ACLI_OUTPUT)]" in said(configured.out)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version.out == short.out
    # A checkout tells its commit too.
    assert re.fullmatch(
        rf"dragoman {project['version']}( \(commit [0-9a-f]+(-dirty)?\))?\n", short.out
    )
    assert by_word.out == by_flag.out and "TASK_ID" in by_word.out
    assert plain.err == version.err == by_word.err == ""


@pytest.mark.cli("A2ACLI_CLI_001")
def test_help_is_there_on_every_level_and_with_a_broken_file(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A2ACLI_POLL_INTERVAL=banana\nnot a line\n")
    levels = ((), ("task",), ("task", "push-config"), ("task", "push-config", "create"), ("card",))
    works = [lambda words=words: desk.run(*words, "--help", a="", cwd=tmp_path) for words in levels]
    for ended in together(*works):
        assert ended.out.startswith("Usage: dragoman")
    none = desk.run(a="", exit=2)
    assert none.out == "" and "Usage: dragoman" in none.err


@pytest.mark.cli("A2ACLI_CLI_002")
def test_completion_scripts_are_taken_by_their_shells(desk: Desk, tmp_path: Path) -> None:
    for shell, check in SHELLS.items():
        script = tmp_path / f"script.{'ps1' if shell == 'powershell' else shell}"
        made = desk.run("completion", shell, a="")
        assert made.err == ""
        script.write_text(made.out)
        assert all(word in made.out for word in ("push-config", "demo-server", "--agent-card"))
        # A shell that is not here has nothing to say; bash is wherever tests run.
        if shell == "bash" or shutil.which(check[0]):
            subprocess.run([*check, script], check=True, timeout=60)
    line = f"source {tmp_path}/script.bash; COMP_WORDS=(dragoman task sub); COMP_CWORD=2; _dragoman"
    told = subprocess.run(["bash", "-c", f'{line}; echo "${{COMPREPLY[@]}}"'], capture_output=True)
    assert told.stdout.split() == [b"subscribe"]
    failed = desk.run("completion", "tcsh", "-o", "json", a="", exit=2)
    assert failed.error["code"] == "A2ACLI_ERR_USAGE"


def skills() -> list[Path]:
    """Return every SKILL.md that we wrote."""
    known = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*SKILL.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in known.stdout.splitlines()]


@pytest.mark.cli("A2ACLI_SKILL_001")
def test_there_is_one_skill_it_ships_and_it_is_lean() -> None:
    (skill,) = skills()
    assert skill.relative_to(ROOT).as_posix() == "dragoman/skills/dragoman/SKILL.md"
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert wheel["targets"]["wheel"] == {"packages": ["dragoman"]}
    text = skill.read_text()
    assert len(text.splitlines()) < 80 and len(text.encode()) < 5000
    assert "dragoman help" in text and "dragoman --version" in text
    assert "-o json" in text and "--stream" in text and "A2ACLI_BEARER" in text
    # Where it says how to get the command, it does not do it.
    assert "pip install" not in text and "auth login" not in text


@pytest.mark.cli("A2ACLI_SKILL_002")
def test_the_skill_restates_no_requirement() -> None:
    folder = skills()[0].parent
    for path in folder.rglob("*.md"):
        text = path.read_text()
        # The two variables are names to use; ids end with a number.
        assert not re.search(r"A2ACLI_[A-Z_]+_\d{3}|A2ACLI_ERR", text)
        assert not re.search(r"\b(MUST|SHOULD|SHALL|MAY|REQUIRED|RECOMMENDED|OPTIONAL)\b", text)


@pytest.mark.cli("A2ACLI_CONFORM_001")
def test_a_good_agent_passes_and_a_broken_one_fails_where_it_is_broken(
    desk: Desk, tmp_path_factory: pytest.TempPathFactory
) -> None:
    words = ("conformance", "--strict", "-o", "json")
    lines, report = together(
        lambda: desk.run(*words, "--stream").lines,
        lambda: desk.run("conformance", "--strict", "--report", "report.json"),
    )
    assert {check["status"] for check in lines} == {"pass", "skip"}
    assert report.fields["Failed"] == "0"
    saved = json.loads((desk.folder / "report.json").read_text())
    assert saved["summary"]["pass"] == int(report.fields["Passed"]) > 40
    assert "sends real messages" in desk.run("conformance", "--help", a="").out
    broken: dict[str, dict[str, Any]] = {
        "waiting-send": {"rules": [{"steps": [{"raw": "<html>", "type": "text/html"}]}]},
        "unknown-task": {
            "rules": [
                {"when": {"method": "GetTask"}, "steps": [{"error": "InternalError"}]},
            ]
        },
        "schema": {"card": {"extra": {"provider": {"organization": 5}}}},
        "push": {
            "rules": [{"when": {"method": "ListTaskPushNotificationConfigs"}, "steps": [_NO]}]
        },
        "streaming": {
            "rules": [{"when": {"method": "SendStreamingMessage"}, "steps": [{"raw": "data: x"}]}]
        },
    }
    for name, script in broken.items():
        with sitting(tmp_path_factory.mktemp("broken"), ScriptedAgent(script)) as bad:
            assert bad.run(*words, exit=1).json["summary"]["fail"]
            found = bad.json("conformance")
        failed = {check["name"] for check in found["checks"] if check["status"] == "fail"}
        assert name in failed, failed


_LIST_PUSH, _NO = "ListTaskPushNotificationConfigs", {"error": "PushNotSupported"}


@pytest.mark.cli("A2ACLI_CONFORM_001")
def test_what_is_declared_and_not_there_is_found(folder: Path) -> None:
    nobody = {"url": "http://127.0.0.1:1/a2a"}
    script = {"card": {"interfaces": [{"binding": "JSONRPC"}, nobody, {"binding": "MQTT"}]}}
    with sitting(folder, ScriptedAgent(script)) as desk:
        checks = desk.json("conformance")["checks"]
    failed = [check for check in checks if check["status"] == "fail"]
    assert [check["name"] for check in failed] == ["reachable"]
    assert [c["interface"] for c in checks if c["name"] == "spoken"] == ["MQTT 1.0"]


@pytest.mark.cli("A2ACLI_DEMO_SERVER_001")
def test_the_demo_agent_passes_conformance(desk: Desk, tmp_path: Path) -> None:
    with running("demo-server", cwd=tmp_path) as child:
        url = child.ready()
        found = desk.json("conformance", "--strict", a=url)
        assert found["summary"]["fail"] == 0 and found["agent"]["name"] == "Demo agent"
        assert child.stop() == 0
    help = desk.run("demo-server", "--help", "--all", a="").out
    assert all(name in help for name in ("--scenario", "--latency", "--tenant", "--auth"))


# What an agent may call a file, and what it is called here.
NAMES = (
    ("../../escape.txt", "escape.txt"),
    ("/etc/passwd", "passwd.txt"),
    ("..\\..\\win.txt", "win.txt"),
    (".hidden", "hidden.txt"),
    ("con.txt", "_con.txt"),
    ("trailing. . ", "trailing.txt"),
    ('a<b>:"c|d?*.txt', "abcd.txt"),
    ("turn\u202etxt.exe", "turntxt.exe"),
    ("x" * 300 + ".txt", "x" * 196 + ".txt"),
    ("plain.csv", "plain.csv"),
)


@pytest.mark.cli("A2ACLI_DOWNLOAD_001")
def test_artifacts_become_files_with_names_of_our_own_making(folder: Path) -> None:
    parts = [{"raw": "b25l", "filename": name, "mediaType": "text/plain"} for name, _ in NAMES]
    texts = [{"text": "one "}, {"text": "two"}, {"data": {"n": 1}}]
    steps = [
        {"artifact": "files", "parts": parts},
        {"artifact": "report", "name": "Report", "parts": texts},
        {"artifact": "again", "parts": [{"raw": "dHdv", "filename": "plain.csv"}]},
        {"artifact": "link", "parts": [{"url": "https://example.com/x.pdf"}]},
        {"state": "completed"},
    ]
    with sitting(folder, ScriptedAgent({"rules": [{"steps": steps}]})) as desk:
        task = desk.json("send", "x")["task"]["id"]
        saved = desk.run("task", "download", task, "--output-dir", "out")
        out = folder / "out"
        expected = {name for _, name in NAMES} | {"Report.txt", "Report.json", "plain-2.csv"}
        assert {path.name for path in out.iterdir()} == expected
        assert (out / "escape.txt").read_bytes() == b"one"
        assert (out / "Report.txt").read_text() == "one two"
        assert json.loads((out / "Report.json").read_text()) == {"n": 1}
        assert not any(path.stat().st_mode & 0o111 for path in out.iterdir())
        assert {"Task", "Context", "State"} <= saved.fields.keys() and "sha256" in saved.out
        assert saved.fields["Files"] == str(len(expected))
        kept = desk.run("task", "download", task, "--output-dir", "out", "-o", "json", exit=1)
        assert "--overwrite" in json.dumps(kept.error)
        (folder / "precious").write_text("keep me")
        (out / "escape.txt").unlink()
        (out / "escape.txt").symlink_to(folder / "precious")
        for more in ((), ("--overwrite",)):
            desk.run("task", "download", task, "--output-dir", "out", *more, exit=None)
            assert (folder / "precious").read_text() == "keep me"
        (folder / "file").write_text("")
        failed = desk.run("task", "download", task, "--output-dir", "file", "-o", "json", exit=1)
        assert failed.error["code"] == "A2ACLI_ERR_INTERNAL"
        some = desk.json("task", "download", task, "--artifact", "again", "--output-dir", "some")
        notes = [part.get("metadata", {}) for one in some["artifacts"] for part in one["parts"]]
        assert [n["dragoman:saved"]["path"] for n in notes if n] == ["some/plain.csv"]
        small = ("--max-bytes", "3", "--output-dir", "small", "-o", "json")
        desk.run("task", "download", task, *small, exit=1)
        assert not (folder / "small").exists() or not list((folder / "small").iterdir())


@pytest.mark.cli("A2ACLI_DOWNLOAD_001")
def test_a_task_without_artifacts_is_no_failure(desk: Desk) -> None:
    task = desk.json("send", "fail")["task"]["id"]
    assert desk.run("task", "download", task).fields["Files"] == "0"
