"""The documents are held to the code: what they name exists, what they show runs.

Tables and quoted files are written by `docs/generate.py`; here it is only checked that they are
not stale.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import httpx
import pytest
from harness.processes import environment, run, running
from harness.serving import app_of
from test_imports import MAY_IMPORT, PACKAGE

from dragoman.cli.gateway.credits import balance
from dragoman.cli.main import cli
from dragoman.cli.own_options import OwnOption
from dragoman.cli.sources import CATALOG
from dragoman.config import FIELDS, IN_FILES
from dragoman.dialects import errors as error_table
from dragoman.dialects import operations
from dragoman.errors import A2AError, CallFailed
from dragoman.server.demo_agent import agent as demo

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
# History names what is gone; every other page speaks of what there is.
PRESENT = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]
DESIGN = ROOT / "docs" / "design.md"
DEMO_ADDRESS = "http://127.0.0.1:8000"
# Files a reader would write, and those that are made when the site is; they are not ours.
THEIRS = {"my_agent.py", "weather.py", "orders.py", "file.py", "till.txt"}
THEIRS |= {"hello.py", "plain.py"}
THEIRS |= {"llms.txt", "llms-full.txt"}

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FILE_NAME = re.compile(r"[\w./-]+\.(?:py|md|sql|toml|txt)|dragoman/[\w/]*")
COMMAND = re.compile(r"(?:^|\s)(?:dragoman|\./dev)(?=\s|$)")


def blocks(document: Path, language: str) -> list[str]:
    return [code for name, code in BLOCK.findall(read(document)) if name == language]


def read(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def inline(document: Path) -> list[str]:
    return INLINE.findall(BLOCK.sub("", read(document)))


def named(documents: list[Path]) -> list[Any]:
    return [
        pytest.param(document, id=document.relative_to(ROOT).as_posix()) for document in documents
    ]


def python_blocks() -> list[Any]:
    return [
        pytest.param(code, id=f"{document.name}-{number}")
        for document in DOCUMENTS
        for number, code in enumerate(blocks(document, "python"), 1)
    ]


def commands(document: Path) -> Iterator[list[str]]:
    """Yield every shown command line of ours as words, the program first."""
    shown = [line for code in blocks(document, "sh") for line in code.splitlines()]
    for line in [*shown, *inline(document)]:
        if COMMAND.match(line):
            yield shlex.split(line)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("document", named(DOCUMENTS))
def test_generated_parts_are_not_stale(document: Path, generator: ModuleType) -> None:
    text = read(document)
    assert generator.filled(text) == text, "run .venv/bin/python docs/generate.py"


def test_every_part_the_generator_knows_is_in_some_document(generator: ModuleType) -> None:
    used = {found["name"] for path in DOCUMENTS for found in generator.PART.finditer(read(path))}
    assert set(generator.PARTS) <= used
    assert "examples/weather.py" in used


@pytest.mark.parametrize("document", named([*DOCUMENTS, ROOT / "SECURITY.md"]))
def test_relative_links_lead_somewhere(document: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(read(document)) if "//" not in link]
    dead = [target for target in targets if target and not (document.parent / target).exists()]
    assert dead == []


@pytest.mark.parametrize("code", python_blocks())
def test_python_in_the_documents_runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The last step of the tutorial imports an earlier one.
    monkeypatch.syspath_prepend(ROOT / "examples" / "tutorial")
    names: dict[str, Any] = {"__name__": "document"}
    exec(compile(code, "block", "exec"), names)
    for name, value in names.items():
        if name.startswith("test_") and inspect.iscoroutinefunction(value):
            asyncio.run(asyncio.wait_for(value(), 60))


@pytest.mark.parametrize("document", named(PRESENT))
def test_shown_commands_and_options_exist(document: Path) -> None:
    dev = re.findall(r"^    ([a-z |-]+)\)$", read(ROOT / "dev"), re.MULTILINE)
    of_dev = {name for names in dev for name in names.split(" | ")}
    for program, *words in commands(document):
        if not words:
            continue
        name = words[0]
        if program == "./dev" and name not in ("up", "serve", "init"):
            assert name in of_dev, f"./dev {name}"
        elif not name.startswith("-"):
            known = within(cli)
            assert name in known, f"{program} {name}"
            assert options(words) <= options_of(known[name]), shlex.join(words)


@pytest.mark.parametrize("document", named(DOCUMENTS))
def test_options_named_alone_exist(document: Path) -> None:
    known = set().union(*(options_of(command) for command in within(cli).values()))
    alone = {word for code in inline(document) if code.startswith("--") for word in code.split()}
    assert {word for word in alone if word.startswith("--") and word != "--no-"} <= known


def options(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}


def within(group: click.Group) -> dict[str, click.Command]:
    """Return the commands of a group, which are loaded when they are asked for."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def options_of(command: click.Command) -> set[str]:
    below = within(command).values() if isinstance(command, click.Group) else ()
    params = command.get_params(click.Context(command))
    own = {name for option in params for name in (*option.opts, *option.secondary_opts)}
    return own.union(*(options_of(one) for one in below))


@pytest.mark.parametrize("document", named(PRESENT))
def test_files_and_modules_named_in_the_documents_exist(document: Path) -> None:
    missing = [
        code
        for code in inline(document)
        if (FILE_NAME.fullmatch(code) and code not in THEIRS and not found(code))
        or (re.fullmatch(r"dragoman(\.\w+)+", code) and not importable(code))
    ]
    assert missing == []


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "SECURITY.md"], ids=lambda d: d.name)
def test_tests_that_are_named_as_evidence_exist(document: Path) -> None:
    named = re.findall(r"\btests/[\w./-]+\.py\b", read(document))
    assert [name for name in named if not (ROOT / name).is_file()] == []
    assert document.name != "security.md" or len(named) >= 10


def found(name: str) -> bool:
    bases = (ROOT, ROOT / "dragoman", ROOT / "docs", ROOT / "examples")
    return any((base / name).exists() for base in bases)


def importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        parent, _, attribute = name.rpartition(".")
        return (
            bool(parent)
            and importable(parent)
            and hasattr(importlib.import_module(parent), attribute)
        )
    return True


@pytest.mark.parametrize("document", named(PRESENT))
def test_settings_and_variables_named_in_the_documents_exist(document: Path) -> None:
    known = set(FIELDS)
    variables = re.findall(r"DRAGOMAN_([A-Z0-9_]+)", read(document))
    # The command line has some of its own, which are no settings of a server.
    asking = {one.variable for one in balance.params if isinstance(one, OwnOption)}
    clients = {name.removeprefix("DRAGOMAN_").lower() for name in {CATALOG, *asking}}
    files = {f"{name}_file" for name in IN_FILES}
    assert {name.lower() for name in variables} <= known | clients | files
    limits = {code for code in inline(document) if re.fullmatch(r"(?:max|retain)_\w+", code)}
    assert limits <= known


def test_the_design_names_every_folder_and_file_at_the_top_of_the_package() -> None:
    entries = {
        f"dragoman/{entry.name}/" if entry.is_dir() else f"dragoman/{entry.name}"
        for entry in (ROOT / "dragoman").iterdir()
        if (entry.is_dir() and any(entry.rglob("*.py"))) or entry.suffix == ".py"
    }
    # What `python -m` needs holds nothing.
    assert entries - {"dragoman/__main__.py"} <= set(inline(DESIGN))


def test_the_picture_has_every_room_its_imports_go_down_and_its_ways_lead_past_files() -> None:
    picture = importlib.import_module("docs.picture")
    assert picture.TARGET.read_text(encoding="utf-8") == picture.picture(), "run docs/picture.py"
    rows = {room: number for number, rooms in enumerate(picture.ROWS.values()) for room in rooms}
    above = {"dragoman", "__main__"}
    assert rows.keys() == MAY_IMPORT.keys() - above
    upward = {
        (room, other.partition(".")[0])
        for room, others in MAY_IMPORT.items()
        for other in others
        if not {room, other} & above and rows[other.partition(".")[0]] < rows[room]
    }
    assert upward == {("telemetry", "security")}
    for way in picture.WAYS:
        for station in way.stations:
            assert station.room in rows and (PACKAGE / station.file).is_file(), station
            assert f"`{station.file}`" in read(DESIGN), station.file


def test_the_glossary_has_our_own_words() -> None:
    words = "dialect transport service call event position fence follower snapshot turn worker"
    rows = re.findall(r"^\| ([a-z ]+) \|", read(DESIGN).partition("## Words")[2], re.MULTILINE)
    assert {*words.split(), "scope", "key", "resting point"} <= set(rows)


def test_every_error_a_peer_can_see_has_a_row() -> None:
    def below(kind: type[A2AError]) -> Iterator[type[A2AError]]:
        for child in kind.__subclasses__():
            if child.__module__ == "dragoman.errors":
                yield child
                yield from below(child)

    assert {row.error for row in error_table.ROWS} == {
        kind for kind in below(A2AError) if not issubclass(kind, CallFailed)
    }


def test_method_names_in_the_documents_are_those_of_the_table() -> None:
    # Those of 0.1 are spoken by house dialects alone.
    known = set(operations.BY_V0_METHOD) | {"tasks/list", "tasks/send", "tasks/sendSubscribe"}
    for document in DOCUMENTS:
        methods = {
            code for code in inline(document) if re.fullmatch(r"(?:tasks|message)/\w+", code)
        }
        assert methods <= known, document.name


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = app_of(demo)
    transport = httpx.ASGITransport(app)
    async with (
        app.running(),
        httpx.AsyncClient(transport=transport, base_url=DEMO_ADDRESS) as client,
    ):
        yield client


async def test_the_quickstart_works_as_it_is_written(client: httpx.AsyncClient) -> None:
    task = ""
    answers: list[str] = []
    shown = "\n".join(blocks(ROOT / "docs" / "quickstart.md", "sh"))
    for command in re.findall(r"^curl (?:'[^']*'|[^'\n])+$", shown, re.MULTILINE):
        answer = await asyncio.wait_for(curl(client, command.replace("TASK", task)), 60)
        assert answer.status_code == 200, answer.text
        assert '"error"' not in answer.text
        answers.append(answer.text)
        if "/message:send" in command:
            task = json.loads(answer.text)["task"]["id"]
    states = [re.findall(r'"state":"(?:TASK_STATE_)?(\w+)"', text) for text in answers]
    card, hello, count, everything, resumed, old = states
    assert card == [] and hello == ["COMPLETED"]
    assert count[0] == "SUBMITTED" and count[-1] == "COMPLETED"
    assert len(everything) == 2 and resumed[-1] == "COMPLETED" and old == ["completed"]


def test_the_quickstart_begins_with_a_project_and_a_function(tmp_path: Path) -> None:
    page, _, _ = read(ROOT / "docs" / "quickstart.md").partition("\n## Start a gateway")
    (plain,) = [code for name, code in BLOCK.findall(page) if name == "python"]
    shown = "".join(code for name, code in BLOCK.findall(page) if name == "sh")
    folder, address, printed = tmp_path / "clone", "", list[str]()
    folder.mkdir()
    with ExitStack() as server:
        for line in shown.splitlines():
            words = shlex.split(line.replace("localhost:8000", address))
            match words:
                case ["./dev", *more]:
                    ended = run(*more, cwd=folder)
                case ["python", *more]:
                    ended = subprocess.run(
                        [sys.executable, *more],
                        cwd=folder,
                        env=environment(folder),
                        capture_output=True,
                        text=True,
                        timeout=120,
                    )
                case ["dragoman", "serve", *more]:
                    server.close()
                    (folder / "plain.py").write_text(plain, encoding="utf-8")
                    serving = running("serve", *more, "--port", "0", cwd=folder)
                    child = server.enter_context(serving)
                    address = child.ready().removeprefix("http://")
                    continue
                case ["dragoman", *more]:
                    ended = run(*more, cwd=folder)
                case ["cd", there]:
                    folder = (folder / there).resolve()
                    continue
                case _:
                    assert line == ". .venv/bin/activate"
                    continue
            assert ended.returncode == 0, ended.stderr
            printed.append(ended.stdout + ended.stderr)
    begun, tested, greeted, shouted = printed
    assert "Next: python -m unittest discover tests\n" in begun and "\nOK" in tested
    assert "Hello, Ada!" in greeted and "HELLO" in shouted


def test_the_commands_of_the_quickstart_work_as_they_are_written(tmp_path: Path) -> None:
    _, _, page = read(ROOT / "docs" / "quickstart.md").partition("\n## Start a gateway")
    shown = "".join(code for name, code in BLOCK.findall(page) if name == "sh")
    typed = re.findall(r"^dragoman (?!serve)(.+)$", shown, re.MULTILINE)
    printed: list[str] = []
    task = ""
    with running("up", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        address = child.ready().removeprefix("http://")
        for command in typed:
            words = shlex.split(command.replace("localhost:8000", address).replace("TASK", task))
            ended = run(*words, cwd=tmp_path)
            assert ended.returncode == 0, ended.stderr
            printed.append(ended.stdout)
            task = (re.findall(r"^Task: (\S+)$", ended.stdout, re.MULTILINE) or [task])[0]
    card, hello, counted, asked, answered, listed, got, kept, delegated = printed
    assert "Name: Dragoman gateway" in card and "hello" in hello
    assert counted.count("TASK_STATE_COMPLETED") == 1 and "5" in counted
    assert "TASK_STATE_INPUT_REQUIRED" in asked
    assert "One cup of tea is on its way to the garden." in answered
    # Each is a task of the gateway's, and one of the agent's.
    assert listed.count("State: ") == 3 and kept.count("State: ") == 6
    assert got.count("TASK_STATE_COMPLETED") == 1
    assert "Where shall it go?" in delegated


async def curl(client: httpx.AsyncClient, command: str) -> httpx.Response:
    """Send what a curl command says, with the few options the documents use."""
    words = iter(shlex.split(command)[1:])
    address, body, headers = "", None, {}
    for word in words:
        if word == "-H":
            name, _, value = next(words).partition(":")
            headers[name] = value.strip()
        elif word == "-d":
            body = next(words)
        elif not word.startswith("-"):
            address = word
    verb = "GET" if body is None else "POST"
    return await client.request(verb, address, headers=headers, content=body)


def _prose(document: Path) -> str:
    """Return what a person wrote: neither code nor tables nor what is generated."""
    text = document.read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "```", text, flags=re.DOTALL)
    text = re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", "<!-- -->", text, flags=re.DOTALL)
    return "\n".join(
        line for line in text.splitlines() if not line.startswith(("|", ":::", "    "))
    )


# Its text is generated: the runs of all proofs were on one machine.
@pytest.mark.parametrize(
    "document", [one for one in PRESENT if one.name != "proof.md"], ids=lambda d: d.name
)
def test_no_page_says_a_thing_twice(document: Path) -> None:
    """As a merge of two versions of one passage leaves it."""
    prose = _prose(document)
    words = prose.split()
    runs = [" ".join(words[at : at + 9]) for at in range(len(words) - 8)]
    assert len(runs) == len(set(runs)), [run for run in set(runs) if runs.count(run) > 1]
    whole = re.sub(r"```.*?```", "```", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    unkept = re.findall(r"^(?!#).*:\n+#.*$|^(?![|#]).*:\n[A-Z].*$", whole, flags=re.MULTILINE)
    assert not unkept, "what ends with a colon is followed by what it announces"


def test_the_readme_is_short_enough_to_read() -> None:
    assert len(README.splitlines()) < 130


def test_documents_say_nothing_of_the_machine_they_were_written_on() -> None:
    home = os.path.expanduser("~")
    for document in DOCUMENTS:
        text = read(document)
        assert f"{ROOT}/" not in text and f"{tempfile.gettempdir()}/" not in text
        assert home in ("/", "") or f"{home}/" not in text
