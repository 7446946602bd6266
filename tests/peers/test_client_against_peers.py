"""Our client against the servers of public libraries and our own: every script, every side.

A side is a server, a version and a binding. What a library cannot do stands in `GAPS` with the
reason; where our client has a right answer to it all the same, that is what is asserted.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from cutting import cutting
from environments import ROOT, EnvironmentFailed
from hosts import HOSTS, HostFailed, hosting
from scripts import SCRIPTS, UNKNOWN

from dragoman import Client
from dragoman.errors import (
    A2AError,
    InvalidParams,
    PushNotSupported,
    TaskNotCancelable,
    UnsupportedOperation,
    VersionNotSupported,
)

# A script that hangs is a failure of its own, not of the whole run.
SCRIPT_WITHIN = 20.0


@dataclass(frozen=True)
class Side:
    """A server, and what is spoken with it."""

    host: str
    version: str
    binding: str
    # What follows the address: a card at another place than the usual.
    card: str = ""

    @property
    def id(self) -> str:
        return f"{self.host}-{self.version}-{self.binding}"


@dataclass(frozen=True)
class Gap:
    """Why a script cannot pass; `raises` is what our client says of it, if it is asked at all."""

    reason: str
    raises: type[A2AError] | None = None


SIDES = [
    Side("dragoman", "1.0", "JSONRPC"),
    Side("dragoman", "1.0", "HTTP+JSON"),
    Side("dragoman", "0.3", "JSONRPC"),
    Side("dragoman", "0.3", "HTTP+JSON"),
    # The usual card speaks of 0.3 and later; this is the one for older clients.
    Side("dragoman", "0.2", "JSONRPC", "/.well-known/agent.json"),
    Side("a2a-sdk-1.3.0", "1.0", "JSONRPC"),
    Side("a2a-sdk-1.3.0", "1.0", "HTTP+JSON"),
    Side("a2a-sdk-1.3.0", "0.3", "JSONRPC"),
    Side("a2a-sdk-1.3.0", "0.3", "HTTP+JSON"),
    Side("a2a-sdk-0.3.26", "0.3", "JSONRPC"),
    Side("a2a-sdk-0.3.26", "0.3", "HTTP+JSON"),
    Side("fasta2a-2.1.1", "1.0", "JSONRPC"),
    Side("a2a-js-1.3.0", "1.0", "JSONRPC"),
    Side("a2a-js-1.3.0", "1.0", "HTTP+JSON"),
    Side("a2a-js-1.3.0", "0.3", "JSONRPC"),
    Side("a2a-js-1.3.0", "0.3", "HTTP+JSON"),
    Side("selectools-1.3.0", "0.2", "JSONRPC"),
    Side("selectools-1.3.0-nowhere", "0.2", "JSONRPC"),
]

NO_LIST = Gap("versions before 1.0 list no tasks over this binding", UnsupportedOperation)
ONLY_TASKS = Gap("the library answers with tasks only")
AT_ONCE = Gap("the library is done with every task before it answers")
NO_PUSH = Gap("the library's card offers no push", PushNotSupported)
TWICE = Gap("over REST the library writes and reads the base64 of a file's base64")
NAMELESS = Gap("the library's 0.3 layer drops the names of files over REST")
CONFIG = Gap(
    "the library wants the `config` of the request as the body, a2a-sdk the whole request",
    InvalidParams,
)

# By side, or by host for all its sides, then by script.
GAPS: dict[str, dict[str, Gap]] = {
    "dragoman-0.3-JSONRPC": {"list-by-context": NO_LIST},
    "dragoman-0.3-HTTP+JSON": {"list-by-context": NO_LIST},
    "dragoman-0.2-JSONRPC": {"list-by-context": NO_LIST},
    "a2a-sdk-1.3.0-0.3-JSONRPC": {"list-by-context": NO_LIST},
    "a2a-sdk-1.3.0-0.3-HTTP+JSON": {
        "list-by-context": NO_LIST,
        "push-configurations-are-listed-and-deleted": Gap(
            "the library's 0.3 layer has no route to delete one", A2AError
        ),
        "file-and-data-out": TWICE,
        "file-and-data-in": TWICE,
    },
    "a2a-sdk-0.3.26": {
        "list-by-context": NO_LIST,
        "subscribing-leaves-a-task-as-it-is": Gap(
            "each stream of a task appends every chunk to the stored artifact once more"
        ),
    },
    "a2a-sdk-0.3.26-0.3-HTTP+JSON": {
        "push-configurations-are-listed-and-deleted": Gap(
            "the library answers 500 to a list and 405 to a delete", A2AError
        ),
        "file-and-data-out": TWICE,
        "file-and-data-in": TWICE,
    },
    "a2a-js-1.3.0-0.3-JSONRPC": {"list-by-context": NO_LIST},
    "a2a-js-1.3.0-0.3-HTTP+JSON": {
        "list-by-context": NO_LIST,
        "push-configurations": CONFIG,
        "push-configurations-are-listed-and-deleted": CONFIG,
        "file-and-data-out": NAMELESS,
        "file-and-data-in": NAMELESS,
    },
    "fasta2a-2.1.1": {
        "direct-message": ONLY_TASKS,
        "stream-a-direct-message": ONLY_TASKS,
        "ask-and-answer": Gap("an answer begins another task, and stored states say nothing"),
        "ask-and-answer-in-streams": Gap("an answer begins another task"),
        "failure-says-why": Gap("the state of a task carries no message"),
        "list-by-context": Gap("the library answers -32004", UnsupportedOperation),
        "push-configurations": NO_PUSH,
        "push-configurations-are-listed-and-deleted": NO_PUSH,
    },
    "selectools": {
        "direct-message": ONLY_TASKS,
        "stream-a-direct-message": ONLY_TASKS,
        "stream-events-in-order": Gap("the library does not stream: the task comes as a whole"),
        "wait-for-what-was-not-waited-for": AT_ONCE,
        "ask-and-answer": Gap("the library never asks, and ignores the task a message names"),
        "ask-and-answer-in-streams": Gap("the library never asks"),
        "failure-says-why": Gap("the library says the class of the exception, not its text"),
        "cancel": Gap("every task has ended when it can be named", TaskNotCancelable),
        "subscribe-to-a-running-task": AT_ONCE,
        "subscribing-leaves-a-task-as-it-is": AT_ONCE,
        "list-by-context": NO_LIST,
        "push-configurations": NO_PUSH,
        "push-configurations-are-listed-and-deleted": NO_PUSH,
        "file-and-data-out": Gap("the library answers with text only"),
        "file-and-data-in": Gap("files are dropped, data becomes text of the prompt"),
        "unknown-task-in-other-operations": Gap("there is no stream to ask for"),
    },
}


def gap_of(side: Side, script: str) -> Gap | None:
    """Return why a side cannot do what a script asks, if it cannot."""
    for name, gaps in GAPS.items():
        if side.id.startswith(name) and script in gaps:
            return gaps[script]
    return None


def cases() -> Iterator[Any]:
    for side in SIDES:
        for script in SCRIPTS:
            gap = gap_of(side, script)
            if gap is None or gap.raises:
                yield pytest.param(side, script, id=f"{side.id}-{script}")


STREAMING = [side for side in SIDES if not side.host.startswith("selectools")]


class Hosts:
    """The servers of this run, started side by side: some take seconds to import themselves."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.folder, self.pool = folder, pool
        self.running = ExitStack()
        self.starting: dict[str, Future[str]] = {}

    def start(self, name: str) -> None:
        if name not in self.starting:
            self.starting[name] = self.pool.submit(self.started, name)

    def started(self, name: str) -> str:
        folder = self.folder / name
        folder.mkdir()
        return self.running.enter_context(hosting(name, folder))

    def address(self, name: str) -> str:
        self.start(name)
        try:
            return self.starting[name].result()
        except (HostFailed, EnvironmentFailed) as error:
            pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="module")
def hosts(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Hosts]:
    with ThreadPoolExecutor(len(HOSTS)) as pool:
        hosts = Hosts(tmp_path_factory.mktemp("hosts"), pool)
        for item in request.session.items:
            arguments = getattr(getattr(item, "callspec", None), "params", {})
            if isinstance(side := arguments.get("side"), Side):
                hosts.start(side.host)
        yield hosts
    # All that were started are up or have failed by now.
    hosts.running.close()


def client(side: Side, ref: str | Path, **more: Any) -> Client:
    given: dict[str, Any] = {"version": side.version, "bindings": [side.binding]}
    return Client(ref, **(given | more))


@pytest.mark.peer
@pytest.mark.parametrize(("side", "script"), list(cases()))
async def test_a_script_passes_against_every_peer(side: Side, script: str, hosts: Hosts) -> None:
    address = hosts.address(side.host) + side.card

    def connect(**more: Any) -> AbstractAsyncContextManager[Client]:
        return client(side, address, **more)

    gap = gap_of(side, script)
    with anyio.fail_after(SCRIPT_WITHIN):
        if gap is None:
            await SCRIPTS[script](connect)
        else:
            assert gap.raises
            with pytest.raises(gap.raises):
                await SCRIPTS[script](connect)


@pytest.mark.peer
@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.id)
async def test_the_side_that_is_asked_for_is_the_one_that_is_spoken(
    side: Side, hosts: Hosts
) -> None:
    async with client(side, hosts.address(side.host) + side.card) as agent:
        await agent.connect()
        spoken = (agent.interface.protocol_binding, agent.interface.protocol_version[:3])
    assert spoken == (side.binding, side.version)


NEWEST = {
    "dragoman": ("1.0", "JSONRPC"),
    "a2a-sdk-1.3.0": ("1.0", "JSONRPC"),
    "a2a-sdk-0.3.26": ("0.3", "JSONRPC"),
    "fasta2a-2.1.1": ("1.0", "JSONRPC"),
    "a2a-js-1.3.0": ("1.0", "JSONRPC"),
    "selectools-1.3.0": ("0.2", "JSONRPC"),
    "selectools-1.3.0-nowhere": ("0.2", "JSONRPC"),
}


@pytest.mark.peer
@pytest.mark.parametrize("host", list(HOSTS))
async def test_the_host_alone_leads_to_the_newest_version(host: str, hosts: Hosts) -> None:
    # Without a scheme, as a person types it.
    bare = hosts.address(host).removeprefix("http://")
    async with Client(bare) as agent:
        assert (await agent.send("echo hello")).text == "hello"
        spoken = (agent.interface.protocol_version[:3], agent.interface.protocol_binding)
    assert spoken == NEWEST[host]


# Real versions that these do not serve: another than a number nobody has heard of.
REFUSED = {"a2a-sdk-0.3.26": "1.0", "fasta2a-2.1.1": "0.3", "selectools-1.3.0": "1.0"}


@pytest.mark.peer
@pytest.mark.parametrize(("host", "version"), list(REFUSED.items()))
async def test_a_version_the_card_does_not_offer_is_refused(
    host: str, version: str, hosts: Hosts
) -> None:
    with pytest.raises(VersionNotSupported):
        async with Client(hosts.address(host), version=version):
            pass


CHUNKS = 16
WHOLE = "".join(f"c{i} " for i in range(CHUNKS))
# Before the first chunk and while the peer tells how the task stands; and amid the chunks.
CUTS = {"early": [900, 450, 500], "late": [2500, 1300]}


@pytest.mark.peer
@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("side", STREAMING, ids=lambda side: side.id)
async def test_a_stream_that_is_cut_reads_as_if_it_was_not(
    side: Side, cuts: str, hosts: Hosts, tmp_path: Path
) -> None:
    address = hosts.address(side.host)
    async with client(side, address + side.card) as agent:
        shown = json.dumps(agent.raw_card)
    card = tmp_path / "card.json"
    with anyio.fail_after(SCRIPT_WITHIN):
        async with cutting(address, CUTS[cuts]) as proxy:
            card.write_text(shown.replace(address, proxy.address))
            async with client(side, card) as agent:
                pieces = [piece async for piece in agent.stream_text(f"chunks {CHUNKS}")]
            # After the first, a client may go on without a stream that could be cut.
            assert len(proxy.cuts) < len(CUTS[cuts])
    assert "".join(pieces) == WHOLE


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a person does, with a home of its own."""
    # Whatever the machine is set to has no say.
    names = [name for name in os.environ if name.startswith(("DRAGOMAN_", "A2ACLI_"))]
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in names}
        | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SCRIPT_WITHIN,
    )


def printed(folder: Path, *words: str) -> str:
    done = typed(folder, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.peer
@pytest.mark.parametrize("host", ["dragoman", "a2a-sdk-1.3.0", "a2a-js-1.3.0"])
def test_the_command_line_sends_streams_and_reads_a_task(
    host: str, hosts: Hosts, tmp_path: Path
) -> None:
    agent = ["-a", hosts.address(host)]
    sent = json.loads(printed(tmp_path, "send", *agent, "-o", "json", "echo hello"))["task"]
    assert sent["status"]["state"] == "TASK_STATE_COMPLETED"
    read = json.loads(printed(tmp_path, "task", "get", sent["id"], *agent, "-o", "json"))
    assert read["artifacts"] == sent["artifacts"]
    assert [part["text"] for part in read["artifacts"][0]["parts"]] == ["hello"]

    streamed = printed(tmp_path, "send", *agent, "--stream", "-o", "json", "chunks 4")
    events = [json.loads(line) for line in streamed.splitlines()]
    assert "task" in events[0]
    chunks = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
    assert [chunk["artifact"]["parts"][0]["text"] for chunk in chunks] == [
        "c0 ",
        "c1 ",
        "c2 ",
        "c3 ",
    ]
    assert events[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.peer
@pytest.mark.parametrize("host", list(HOSTS))
def test_a_plain_send_of_the_command_is_answered_by_every_peer(
    host: str, hosts: Hosts, tmp_path: Path
) -> None:
    words = ("send", "-a", hosts.address(host).removeprefix("http://"), "echo hello", "-o", "json")
    sent = typed(tmp_path, *words)
    assert sent.returncode == 0 and '"text": "hello"' in sent.stdout, sent.stderr
    version, _ = NEWEST[host]
    is_older = version != "1.0"
    note = f"Note: the agent offers nothing newer than {version}, "
    assert (note in sent.stderr) == is_older, sent.stderr
    strict = typed(tmp_path, *words, "--strict-version")
    assert strict.returncode == (1 if is_older else 0), strict.stderr
    if is_older:
        error = json.loads(strict.stdout)["error"]
        assert error["code"] == "VersionNotSupportedError"
        assert error["hint"].endswith(f"--strict-version --a2a-version {version}")


@pytest.mark.peer
def test_the_command_line_says_which_error_a_peer_answered(hosts: Hosts, tmp_path: Path) -> None:
    agent = ["-a", hosts.address("a2a-js-1.3.0")]
    done = typed(tmp_path, "task", "get", UNKNOWN, *agent, "-o", "json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "TaskNotFoundError"


def test_every_gap_names_a_side_and_a_script_that_exist() -> None:
    for name, gaps in GAPS.items():
        assert any(side.id.startswith(name) for side in SIDES), name
        assert set(gaps) <= set(SCRIPTS), name
