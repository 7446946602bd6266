"""The real packages of the frameworks, served by their own interpreter: answers, pieces, failures,
cancels, and what is remembered between messages."""

import asyncio
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.processes import ROOT, environment
from harness.serving import Site, client, message
from harness.waiting import within

from dragoman.testing.processes import ServerProcess
from proof.environments import python_with
from tests.agents.adapters.frameworks import python_with_crewai, python_with_frameworks

TARGETS = Path(__file__).parent / "targets"
EXAMPLES = ROOT / "examples" / "adapters"
SERVED = [
    *(EXAMPLES / f"{name}.py" for name in ("langgraph_graph", "pydantic_ai_agent", "adk_agent")),
    EXAMPLES / "openai_agents_agent.py",
    *sorted(TARGETS.glob("*_trial.py")),
]
# Four frameworks are read before the first answer.
START_WITHIN = 90.0
# Whoever has no `dragoman` borrows what it needs from the tests, after packages of its own.
BORROWING = (
    f"import sys; sys.path.append({sysconfig.get_path('purelib')!r});"
    " from dragoman.cli.main import main; main(sys.argv[1:])"
)

# CrewAI tells its makers of every run unless it is told not to.
QUIET = {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve all examples and trials in one process."""
    python = python_with_frameworks()
    with served([python, "-m", "dragoman"], SERVED, tmp_path_factory.mktemp("all")) as child:
        yield child


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serve a crew and one of its agents."""
    if sys.version_info >= (3, 14):
        pytest.skip("CrewAI 1.15 is for Python below 3.14")
    python = python_with_crewai()
    targets = [EXAMPLES / "crew.py", f"{EXAMPLES / 'crew.py'}:writer", TARGETS / "crew_of_two.py"]
    with served([python, "-m", "dragoman"], targets, tmp_path_factory.mktemp("crew")) as child:
        yield child


@contextmanager
def served(
    command: list[str | Path], targets: Sequence[str | Path], folder: Path
) -> Iterator[ServerProcess]:
    """Serve targets with another interpreter."""
    with ServerProcess(
        [*command, "serve", *targets, "--listen", "127.0.0.1:0"],
        log=folder / "log",
        cwd=folder,
        environment=environment(folder)
        | QUIET
        | {"DRAGOMAN_STORE": "memory:", "HOME": str(folder)},
    ) as child:
        child.ready(START_WITHIN)
        yield child


@pytest.fixture
async def site(frameworks: ServerProcess) -> AsyncIterator[Site]:
    async with client(frameworks.url) as http:
        yield Site(frameworks.url, http)


async def send(site: Site, agent: str, text: str, **more: Any) -> Any:
    params = {"message": message(text, **more)}
    ((_, task),) = (await site.call("SendMessage", params, path=f"/agents/{agent}")).items()
    return task


def answer(task: Any) -> str:
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task["status"]
    (artifact,) = task["artifacts"]
    assert artifact["name"] == "response"
    return "".join(part["text"] for part in artifact["parts"])


async def pieces(site: Site, agent: str, text: str) -> list[tuple[str, bool]]:
    """Return what is shown as it comes: each text, and whether it is added to the one before."""
    params = {"message": message(text)}
    frames = await site.events("SendStreamingMessage", params, path=f"/agents/{agent}")
    chunks = [f.result["artifactUpdate"] for f in frames if "artifactUpdate" in f.result]
    parts = [(c["artifact"]["parts"][0], c.get("append", False)) for c in chunks]
    return [(part["text"], append) for part, append in parts if part.get("text")]


@pytest.mark.parametrize(
    ("agent", "text", "expected"),
    [
        ("langgraph-graph", "hello", "You said hello"),
        ("forecaster", "weather?", "Sunny in Oslo"),
        ("parrot", "hello", "hello!"),
        ("shouter", "hello", "HELLO"),
        ("pydantic-trial", "word", "word has 4 of 3"),
        ("sdk-trial", "word", "word has 4"),
        ("adk-trial", "word", "You said word"),
    ],
)
async def test_each_framework_answers(site: Site, agent: str, text: str, expected: str) -> None:
    assert answer(await send(site, agent, text)) == expected


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("graph-trial", [("It", False), (" ", True), ("is", True), (" ", True), ("word", True)]),
        (
            "pydantic-trial",
            [("Let me see. ", False), ("word has ", False), ("4", True), (" of 3", True)],
        ),
        ("sdk-trial", [("Let me see. ", False), ("word has ", False), ("4", True)]),
        ("adk-trial", [("You said ", False), ("word", True)]),
    ],
)
async def test_what_a_framework_streams_is_shown_piece_by_piece(
    site: Site, agent: str, expected: list[tuple[str, bool]]
) -> None:
    shown = await pieces(site, agent, "word")
    assert shown == expected


@pytest.mark.parametrize("agent", ["graph-trial", "pydantic-trial", "sdk-trial", "adk-trial"])
async def test_a_failure_names_its_type_and_nothing_else(site: Site, agent: str) -> None:
    task = await send(site, agent, "fail")
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    (part,) = task["status"]["message"]["parts"]
    assert part["text"] == "Agent execution failed (ConnectionError)"
    assert "hunter2" not in str(task)


async def test_an_event_that_says_it_failed_fails_the_task(site: Site) -> None:
    task = await send(site, "adk-trial", "error")
    assert task["status"]["message"]["parts"] == [{"text": "Agent execution failed (AdkFailed)"}]


@pytest.mark.parametrize(
    ("agent", "who"),
    [
        ("graph-trial", "the graph"),
        ("pydantic-trial", "the pydantic agent"),
        ("sdk-trial", "the sdk agent"),
        ("adk-trial", "the adk agent"),
    ],
)
async def test_a_cancel_stops_the_framework(
    site: Site, frameworks: ServerProcess, agent: str, who: str
) -> None:
    path = f"/agents/{agent}"
    params = {"message": message("hang"), "configuration": {"returnImmediately": True}}
    task = (await site.call("SendMessage", params, path=path))["task"]
    await asyncio.to_thread(frameworks.line, f"{who} hangs")
    canceled = await within(site.call("CancelTask", {"id": task["id"]}, path=path))
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
    await asyncio.to_thread(frameworks.line, f"{who} was stopped")


async def test_an_object_is_answered_as_one(site: Site) -> None:
    task = await send(site, "typed-trial", "which city?")
    assert task["artifacts"][0]["parts"] == [{"data": {"name": "Oslo"}}]


async def test_an_object_is_the_state_of_a_graph(site: Site) -> None:
    params = {"message": message(parts=[{"data": {"question": "late"}}])}
    task = (await site.call("SendMessage", params, path="/agents/graph-trial"))["task"]
    (artifact,) = task["artifacts"]
    assert artifact["parts"] == [{"data": {"seen": ["late"], "answer": "It is late"}}]


@pytest.mark.parametrize("agent", ["langgraph-graph", "adk-runner"])
async def test_what_remembers_does_so_within_a_conversation(site: Site, agent: str) -> None:
    first = await send(site, agent, "one")
    context = first["contextId"]
    assert answer(await send(site, agent, "two", contextId=context)) == "You said one, two"
    assert answer(await send(site, agent, "three")) == "You said three"


async def test_an_agent_without_sessions_of_its_own_remembers_nothing(site: Site) -> None:
    first = await send(site, "adk-trial", "one")
    second = await send(site, "adk-trial", "two", contextId=first["contextId"])
    assert answer(second) == "You said two"


async def test_an_interrupt_is_a_question_and_the_answer_resumes_the_graph(site: Site) -> None:
    task = await send(site, "langgraph-graph", "book a room")
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert task["status"]["message"]["parts"] == [{"text": "Really book a room?"}]
    ids = {"taskId": task["id"], "contextId": task["contextId"]}
    assert answer(await send(site, "langgraph-graph", "yes", **ids)) == "book a room: yes"


async def test_a_question_that_the_conversation_passed_by_is_answered_in_vain(site: Site) -> None:
    asked = await send(site, "langgraph-graph", "book a room")
    await send(site, "langgraph-graph", "never mind", contextId=asked["contextId"])
    ids = {"taskId": asked["id"], "contextId": asked["contextId"]}
    task = await send(site, "langgraph-graph", "yes", **ids)
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "went on without" in str(task["status"]["message"])


async def test_an_agent_of_selectools_answers_with_its_tools_as_skills(tmp_path: Path) -> None:
    python = python_with("selectools[serve]==1.3.0")
    target = EXAMPLES / "selectools_agent.py"
    with served([python, "-c", BORROWING], [target], tmp_path) as child:
        async with client(child.url) as http:
            site = Site(child.url, http)
            task = await site.send("bees")
            assert answer(task) == "[local provider: local-model] bees"
            card = (await http.get("/.well-known/agent-card.json")).json()
    assert card["name"] == "forecaster"
    assert [skill["id"] for skill in card["skills"]] == ["weather"]


@pytest.fixture
async def crew_site(crew: ServerProcess) -> AsyncIterator[Site]:
    async with client(crew.url) as http:
        yield Site(crew.url, http)


async def test_a_crew_does_what_a_message_says(crew_site: Site) -> None:
    for topic in ("bees", "wasps"):
        assert answer(await send(crew_site, "crew", topic)) == f"Write about {topic}"


async def test_one_agent_of_a_crew_answers(crew_site: Site) -> None:
    assert answer(await send(crew_site, "writer", "hello")) == "hello"


async def test_tasks_of_a_crew_are_filled_by_an_object_and_end_with_one(crew_site: Site) -> None:
    path = "/agents/crew-of-two"
    missing = await send(crew_site, "crew-of-two", "bees")
    assert missing["status"]["state"] == "TASK_STATE_REJECTED"
    assert "The message needs a data part with: tone, topic" in str(missing["status"])
    params = {"message": message(parts=[{"data": {"topic": "bees", "tone": "dry"}}])}
    task = (await crew_site.call("SendMessage", params, path=path))["task"]
    assert task["artifacts"][0]["parts"] == [{"data": {"topic": "bees", "tone": "dry"}}]


async def test_a_crew_that_fails_names_the_type_and_nothing_else(crew_site: Site) -> None:
    params = {"message": message(parts=[{"data": {"topic": "fail", "tone": "dry"}}])}
    task = (await crew_site.call("SendMessage", params, path="/agents/crew-of-two"))["task"]
    (part,) = task["status"]["message"]["parts"]
    assert part["text"] == "Agent execution failed (ConnectionError)"
    assert "hunter2" not in str(task)
