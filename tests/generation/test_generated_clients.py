"""Modules written from the cards of the examples: they type-check, run, and say what calls by hand
say."""

import asyncio
import importlib.util
import json
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
from harness.processes import ROOT, run
from harness.serving import app_of, serving

from dragoman import Agent, Client, Settings, Turn
from dragoman.client.typed import AgentChanged, SkillSchemas, Unanswered
from dragoman.errors import InvalidAgentResponse, InvalidParams, Unreachable
from dragoman.generation.client_module import client_module, types_module
from dragoman.model.card import AgentCard
from dragoman.server.cards import build
from proof.environments import python_with

EXAMPLES = ("approval", "chunks", "events", "files", "guarded", "several", "steps", "weather")
URL = "http://127.0.0.1:8000"


def card_of(agent: Agent) -> AgentCard:
    return build(agent, URL, Settings())


def loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def example(name: str) -> Agent:
    """Return the first agent of an example."""
    module = loaded(f"example_{name}", ROOT / "examples" / f"{name}.py")
    return next(one for one in vars(module).values() if isinstance(one, Agent))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Leaf:
    """A leaf of a tree, which may have leaves."""

    name: str
    colour: Colour = Colour.RED
    leaves: list["Leaf"] = field(default_factory=list["Leaf"])


@dataclass
class Tree:
    root: Leaf
    age: int | None = None
    labels: dict[str, float] = field(default_factory=dict[str, float])


def gardener() -> Agent:
    """Return an agent whose skills have every kind of type."""
    agent = Agent("Tree gardener", "Grows trees.")

    @agent.skill
    async def grow(tree: Tree, years: int = 1) -> Tree:
        """Makes a tree older."""
        return Tree(tree.root, (tree.age or 0) + years, tree.labels)

    @agent.skill
    async def count_leaves(leaf: Leaf, way: Literal["deep", "flat"] = "deep") -> int:
        """Counts leaves."""
        if way == "flat":
            return len(leaf.leaves)
        return sum([1 + (await count_leaves(one)) for one in leaf.leaves])

    @agent.skill
    async def names(leaves: list[Leaf]) -> list[str]:
        """Names leaves."""
        return [leaf.name for leaf in leaves]

    @agent.skill
    async def join(left: str, right: str) -> str:
        """Takes two texts."""
        return left + right

    @agent.skill
    async def press(content: bytes) -> bytes:
        """Turns a file around."""
        return content[::-1]

    @agent.skill(id="class", name="Sort")
    async def sort(text: str, turn: Turn) -> str:
        """Asks back: a name that Python has for something else."""
        answer = await turn.ask("Which class?")
        return f"{text}: {answer.text}"

    @agent.skill
    async def tallest(leaves: list[Leaf], turn: Turn) -> Leaf | None:
        """May have no result, and says so."""
        await turn.say("looking")
        return leaves[0] if leaves else None

    @agent.skill
    async def label(leaf: Leaf) -> str | None:
        """May have no text."""
        return leaf.name or None

    @agent.skill
    async def picture(leaf: Leaf) -> bytes | None:
        """May have no file."""
        return leaf.name.encode() or None

    @agent.skill
    async def place(at: tuple[int, str]) -> tuple[str, int]:
        """Takes and returns lists of a fixed length."""
        return at[1], at[0]

    @agent.skill
    async def lie(text: str) -> int:
        """Returns what it does not say."""
        return "no number"  # type: ignore[return-value]

    return agent


AGENTS = {**{name: name for name in EXAMPLES}, "gardener": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the modules of all agents."""
    folder = tmp_path_factory.mktemp("generated")
    for name in AGENTS:
        agent = gardener() if name == "gardener" else example(name)
        (folder / f"{name}_client.py").write_text(client_module(card_of(agent), URL))
        (folder / f"{name}_types.py").write_text(types_module(card_of(agent)))
    return folder


USE = """
from gardener_client import Leaf, Tree, TreeGardener


async def use() -> None:
    async with TreeGardener() as agent:
        grown: Tree = await agent.grow({"root": {"name": "oak"}}, years=2)
        leaf: Leaf = grown["root"]
        number: int = await agent.count_leaves(leaf, way="flat")
        texts: list[str] = await agent.names([leaf])
        joined: str = await agent.join(left="a", right="b")
        tallest: Leaf | None = await agent.tallest([leaf])
        label: str | None = await agent.label(leaf)
        file: bytes | None = await agent.picture(leaf)
        where: tuple[str, int] = await agent.place((1, "a"))
        print(tallest, label, file, where)
        async for chunk in agent.stream_class_("x"):
            print(chunk.upper(), number, texts, joined)
        with agent.sync as plain:
            again: Tree = plain.grow({"root": {"name": "oak"}})
            print(again, [text.upper() for text in plain.stream_class_("x")])


async def misuse(agent: TreeGardener) -> None:
    await agent.grow({"root": {"name": 3}})  # error
    await agent.count_leaves({"name": "x", "colour": "green"})  # error
    await agent.count_leaves({"name": "x"}, way="wide")  # error
    text: str = await agent.count_leaves({"name": "x"})  # error
    await agent.place((1, 2))  # error
    print(text)
"""


def test_all_modules_pass_a_strict_type_checker(folder: Path) -> None:
    (folder / "use.py").write_text(USE)
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "venvPath": str(ROOT),
        "venv": ".venv",
        "extraPaths": [str(ROOT)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--project", str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = [
        (Path(one["file"]).name, one["range"]["start"]["line"], one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
    ]
    wrong = {number for number, line in enumerate(USE.split("\n")) if line.endswith("# error")}
    assert [one for one in found if one[0] != "use.py"] == []
    assert {one[1] for one in found} == wrong, found


@pytest.mark.peer
def test_another_type_checker_says_the_same(folder: Path) -> None:
    (folder / "use.py").write_text(USE)
    done = subprocess.run(
        [
            *(str(python_with("mypy==2.4.1")), "-m", "mypy", "--strict", "--no-error-summary"),
            *("--python-executable", sys.executable, "--cache-dir", str(folder / "cache")),
            *sorted(str(one) for one in folder.glob("*.py")),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    wrong = [number for number, line in enumerate(USE.split("\n"), 1) if line.endswith("# error")]
    found = done.stdout.splitlines()
    assert [line.split(": error")[0] for line in found] == [f"use.py:{one}" for one in wrong], found


def module_of(folder: Path, name: str) -> ModuleType:
    return loaded(f"{name}_client", folder / f"{name}_client.py")


async def test_examples_answer_typed_calls_as_calls_by_hand(folder: Path) -> None:
    weather = app_of(example("weather"))
    async with Client(app=weather) as by_hand:
        answer = await by_hand.send("Oslo")
        typed = module_of(folder, "weather").Weather(client=Client(app=weather))
        async with typed:
            assert await typed.forecast("Oslo") == answer.text
            assert "".join([one async for one in typed.stream_forecast("Oslo")]) == answer.text
    chunks = app_of(example("chunks"))
    async with Client(app=chunks) as by_hand:
        answer = await by_hand.send({"start": 3}, metadata={"skillId": "countdown"})
        async with module_of(folder, "chunks").Chunks(client=Client(app=chunks)) as typed:
            assert await typed.countdown(3) == answer.text
    files = app_of(example("files"))
    async with Client(app=files) as by_hand:
        answer = await by_hand.send(b"123")
        async with module_of(folder, "files").Files(client=Client(app=files)) as typed:
            assert await typed.inspect(b"123") == answer.data
            rows = [{"a": 1, "b": 2}]
            table = await typed.table(rows)
            hand = await by_hand.send({"rows": rows}, metadata={"skillId": "table"})
            assert [part.raw for part in table.files] == [part.raw for part in hand.files]
    payments = app_of(example("approval"))
    async with module_of(folder, "approval").Payments(client=Client(app=payments)) as typed:
        assert await typed.pay(10) == "Paid 10."
        with pytest.raises(Unanswered, match="input-required: Pay 100") as raised:
            await typed.pay(100)
        assert raised.value.answer.task_id
        with pytest.raises(Unanswered, match="rejected: There is nothing to pay"):
            await typed.pay(0)
        # What is no result is none in a stream either.
        for amount, why in ((100, "input-required: Pay 100"), (0, "rejected: There is nothing")):
            told: list[str] = []
            with pytest.raises(Unanswered, match=why):
                told += [text async for text in typed.stream_pay(amount)]
            assert told == []
        assert [text async for text in typed.stream_pay(10)] == ["Paid 10."]


@pytest.mark.parametrize(
    ("name", "title", "skill"),
    [
        ("events", "Teller", "repeat"),
        ("guarded", "Guarded", "greet"),
        ("several", "Upper", "raise_case"),
        ("steps", "Orders", "order"),
    ],
)
async def test_examples_that_take_a_text_answer_typed_calls_as_calls_by_hand(
    name: str,
    title: str,
    skill: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACKING_SECONDS", "0")
    app, text = app_of(example(name)), "my card is 4111 1111 1111 1111"
    async with (
        Client(app=app) as by_hand,
        getattr(module_of(folder, name), title)(client=Client(app=app)) as typed,
    ):
        answer = await by_hand.send(text, metadata={"skillId": skill})
        assert answer.text
        # An order's receipt has the number of its line.
        expected = answer.text.replace("receipt 2", "receipt 5")
        assert await getattr(typed, skill)(text) == expected
        pieces = [piece async for piece in getattr(typed, f"stream_{skill}")(text)]
        assert "".join(pieces) == answer.text.replace("receipt 2", "receipt 8")


async def test_every_kind_of_type_goes_there_and_back(folder: Path) -> None:
    async def answer(request: Any) -> str:
        return "first"

    module = module_of(folder, "gardener")
    typed = module.TreeGardener(client=Client(app=app_of(gardener())), on_request=answer)
    oak = {"name": "oak", "leaves": [{"name": "a", "leaves": [{"name": "b"}]}]}
    async with typed:
        grown = await typed.grow({"root": oak, "labels": {"x": 1.5}}, years=2)
        assert (grown["age"], grown["root"]["name"], grown["labels"]) == (2, "oak", {"x": 1.5})
        assert await typed.count_leaves(oak) == 2
        assert await typed.count_leaves(oak, way="flat") == 1
        assert await typed.names([oak]) == ["oak"]
        assert await typed.join("a", "b") == "ab"
        assert await typed.press(b"abc") == b"cba"
        assert await typed.class_("x") == "x: first"
        found = await typed.tallest([oak])
        assert found is not None and found["name"] == "oak" and await typed.tallest([]) is None
        assert (await typed.label(oak), await typed.label({"name": ""})) == ("oak", None)
        assert (await typed.picture(oak), await typed.picture({"name": ""})) == (b"oak", None)
        assert await typed.place((1, "a")) == ("a", 1)
        with pytest.raises(InvalidAgentResponse, match="not what the card says"):
            await typed.lie("x")
        with pytest.raises(InvalidParams):
            await typed.grow({"root": 3})


def test_the_twin_of_a_client_waits(folder: Path) -> None:
    agent = gardener()
    with module_of(folder, "gardener").TreeGardener(client=Client(app=app_of(agent))).sync as plain:
        assert plain.names([{"name": "oak"}]) == ["oak"]
        with plain.stream_names([{"name": "oak"}]) as events:
            assert list(events) and events.answer.data == ["oak"]
    chunks = module_of(folder, "chunks").Chunks(client=Client(app=app_of(example("chunks"))))
    with chunks.sync as plain:
        assert "".join(plain.stream_words("one two")) == plain.words("one two")
    payments = module_of(folder, "approval").Payments(
        client=Client(app=app_of(example("approval")))
    )
    with payments.sync as plain, pytest.raises(Unanswered, match="input-required: Pay 100"):
        list(plain.stream_pay(100))


def changed_gardener() -> Agent:
    changed = Agent("Tree gardener", "Grows trees.")

    @changed.skill
    async def names(leaves: list[str]) -> list[str]:
        """Takes something else."""
        return leaves

    @changed.skill
    async def prune(text: str) -> str:
        """Is new."""
        return text

    return changed


async def test_a_module_says_that_its_agent_has_changed(folder: Path) -> None:
    changed = changed_gardener()
    module = module_of(folder, "gardener")
    async with module.TreeGardener(client=Client(app=app_of(changed))) as typed:
        with pytest.warns(AgentChanged) as said:
            assert await typed.names(["x"]) == ["x"]
        (warning,) = said
        for words in (
            "no skill 'grow' any more",
            "was written: the skill 'names' takes or returns something else; it has",
            "; and 2 more. Write it anew",
            f"dragoman gen client {URL}",
        ):
            assert words in str(warning.message)
        assert (await typed.changes())[-1] == "the skill 'prune' is new"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await typed.names(["x"])
    async with module.TreeGardener(client=Client(app=app_of(gardener()))) as typed:
        assert await typed.changes() == []


def test_choices_in_another_order_are_no_change() -> None:
    def schemas(*choices: object) -> SkillSchemas:
        return SkillSchemas({"properties": {"size": {"enum": list(choices)}}})

    written = schemas("large", "small").fingerprint
    assert schemas("small", "large").has(written), "as an agent had it that sorted them"
    assert not schemas("small", "tall").has(written)
    mixed = schemas("x", 1)
    assert mixed.has(mixed.fingerprint) and not mixed.has(written)


async def test_the_events_of_a_skill_say_that_its_agent_has_changed(folder: Path) -> None:
    module, app = module_of(folder, "gardener"), app_of(changed_gardener())
    async with module.TreeGardener(client=Client(app=app)) as typed:
        events = typed.stream_names(["x"])
        with pytest.warns(AgentChanged, match="no skill 'grow' any more"):
            await anext(events)
        # Once: the others go on without it.
        assert [event async for event in events] and events.answer.data == ["x"]
        assert [event async for event in typed.stream_names(["x"])]


def test_the_twin_of_a_client_says_that_its_agent_has_changed(folder: Path) -> None:
    module, app = module_of(folder, "gardener"), app_of(changed_gardener())
    for call in (lambda plain: plain.names(["x"]), lambda plain: list(plain.stream_names(["x"]))):
        typed = module.TreeGardener(client=Client(app=app))
        with typed.sync as plain, pytest.warns(AgentChanged, match="no skill 'grow' any more"):
            assert call(plain)


async def test_a_card_that_could_not_be_read_is_compared_with_the_next_call(
    folder: Path,
) -> None:
    module, app = module_of(folder, "gardener"), app_of(changed_gardener())
    async with module.TreeGardener(client=Client(app=app)) as typed:
        look = typed.client.look

        async def fails() -> None:
            raise Unreachable

        typed.client.look = fails
        with pytest.raises(Unreachable):
            await typed.names(["x"])
        typed.client.look = look
        with pytest.warns(AgentChanged):
            assert await typed.names(["x"]) == ["x"]


@pytest.fixture
async def served() -> Any:
    async with serving(gardener()) as site:
        yield site


async def test_the_command_writes_compares_and_replaces(served: Any, tmp_path: Path) -> None:
    path = tmp_path / "garden.py"

    async def gen(*words: str) -> Any:
        return await asyncio.to_thread(run, "gen", *words, cwd=tmp_path)

    done = await gen("client", served.url, "--save", "garden.py")
    assert done.returncode == 0, done.stderr
    module = loaded("garden", path)
    async with module.TreeGardener() as typed:
        assert await typed.names([{"name": "oak"}]) == ["oak"]
    assert (await gen("client", served.url, "--save", "garden.py", "--check")).returncode == 0
    refused = await gen("client", served.url, "--save", "garden.py")
    assert refused.returncode != 0 and "--force" in refused.stderr
    path.write_text("# changed\n")
    stale = await gen("client", served.url, "--save", "garden.py", "--check")
    assert stale.returncode != 0 and "write it anew" in stale.stderr
    assert (await gen("client", served.url, "--save", "garden.py", "--force")).returncode == 0
    for words in (("-o", "other.py"), ("-oother.py", "--force"), ("--output=other.py", "--force")):
        done = await gen("client", served.url, *words)
        assert done.returncode == 0 and done.stdout == f"File: {tmp_path / 'other.py'}\n"
    assert (tmp_path / "other.py").read_text() == path.read_text()
    # The names of formats are formats, beside a file too.
    done = await gen("types", served.url, "-o", "types.py", "-o", "json")
    assert json.loads(done.stdout) == {"path": str(tmp_path / "types.py")}, done.stderr
    assert not (tmp_path / "json").exists()
    assert (await gen("types", served.url, "--save", "json")).returncode == 0
    assert (tmp_path / "json").exists()
    shown = await gen("types", served.url)
    assert "class Leaf(TypedDict):" in shown.stdout
