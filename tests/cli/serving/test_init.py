"""`dragoman init`: what it makes runs and tests itself, as it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness.processes import ACTIVE, START_WITHIN, environment, run, running


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the project's own tests, with nothing of ours around it."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=START_WITHIN,
    )


def test_an_agent_tests_itself_and_answers(tmp_path: Path) -> None:
    made = run("init", "hello", "--name", "Greeter 1", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    files = [
        line.removeprefix("File: ") for line in made.stdout.splitlines() if line.startswith("File")
    ]
    assert files == [
        "hello/pyproject.toml",
        "hello/greeter_1.py",
        "hello/tests/test_greeter_1.py",
        "hello/README.md",
    ]
    assert "Next: dragoman serve greeter_1.py\n" in made.stdout
    project = tmp_path / "hello"
    ended = checked(project)
    assert ended.returncode == 0 and "1 passed" in ended.stdout, ended.stdout + ended.stderr
    # A test that could not fail would say so here.
    code = project / "greeter_1.py"
    code.write_text(code.read_text().replace("Hello, ", "Bye, "))
    assert checked(project).returncode == 1
    options = ("--listen", "127.0.0.1:0", "--store", "memory:")
    with running("serve", "greeter_1.py", *options, cwd=project) as child:
        sent = run("send", "-a", child.ready(), "Ada", cwd=project)
        assert sent.returncode == 0 and "\nBye, Ada!\n" in sent.stdout, sent.stderr
        assert child.stop() == 0


def test_a_client_tests_itself_and_asks(tmp_path: Path) -> None:
    words = ("init", "--template", "client", "--name", "Asker", "-o", "json")
    made = run(*words, cwd=tmp_path, env=ACTIVE)
    assert json.loads(made.stdout) == {
        "dir": ".",
        "files": ["pyproject.toml", "asker.py", "tests/test_asker.py", "README.md"],
        "next": [
            "python -m unittest discover tests",
            "dragoman up",
            'python asker.py 127.0.0.1:8000 "hello"',
        ],
    }
    ended = checked(tmp_path)
    assert ended.returncode == 0 and "1 passed" in ended.stdout, ended.stdout + ended.stderr
    with running("up", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        asked = subprocess.run(
            [sys.executable, "asker.py", child.ready(), "hello"],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=START_WITHIN,
        )
        assert asked.stdout == "hello\n", asked.stderr
        assert child.stop() == 0


def test_nothing_is_replaced_unless_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    refused = run("init", "--name", "X", "-o", "json", cwd=tmp_path)
    assert refused.returncode == 2
    assert "README.md" in json.loads(refused.stdout)["error"]["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert run("init", "--force", "--dry-run", cwd=tmp_path).returncode == 0
    assert (tmp_path / "README.md").read_text() == "mine"
    assert run("init", "--force", "--name", "X", cwd=tmp_path).returncode == 0
    assert (tmp_path / "README.md").read_text().startswith("# X\n")


def test_the_skill_is_installed_where_assistants_look(tmp_path: Path) -> None:
    made = run("init", "--skill", "--name", "X", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    skill = tmp_path / ".agents" / "skills" / "dragoman" / "SKILL.md"
    assert "name: dragoman" in skill.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--template", "boat"), "agent, client, gateway, pair, approval, mcp"),
        (("--name", 'a" + evil() + "'), "quotes"),
        (("--name", "two\nlines"), "one line"),
    ],
)
def test_what_cannot_be_made_is_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    ended = run("init", *arguments, cwd=tmp_path)
    assert ended.returncode == 2 and says in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("json", "json_agent"),
        ("class", "class_agent"),
        ("mcp", "mcp_agent"),
        ("msgspec", "msgspec_agent"),
        ("3 wise men", "agent_3_wise_men"),
    ],
)
def test_a_module_has_a_name_that_can_be_imported(tmp_path: Path, name: str, module: str) -> None:
    made = run("init", "--name", name, "--dry-run", cwd=tmp_path)
    assert f"File: {module}.py\n" in made.stdout


@pytest.mark.parametrize("template", ["agent", "client", "gateway", "pair", "approval", "mcp"])
def test_how_to_install_holds_while_no_index_has_the_package(tmp_path: Path, template: str) -> None:
    run("init", "--template", template, "--name", "One", cwd=tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "pip install dragoman" not in text and "clone" in text and "wheel" in text
