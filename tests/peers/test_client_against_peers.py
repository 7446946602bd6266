"""Our client against the servers of public libraries and our own: every script, every side.

What there is and what it cannot do stands in `sides.py`.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from harness import nursery

from dragoman import Client
from dragoman.client.agent_connection import FOUND_LATER
from dragoman.errors import VersionNotSupported
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from proof.environments import ROOT
from tests.peers.cutting import cutting
from tests.peers.running import SCRIPT_WITHIN, Hosts, client, played, running, wanted
from tests.peers.scripts import SCRIPTS, UNKNOWN
from tests.peers.sides import GAPS, LIBRARIES, SIDES, Side, cases

pytestmark = pytest.mark.usefixtures("one_loop")


@pytest.fixture(scope="module")
def hosts(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Hosts]:
    with running(tmp_path_factory.mktemp("hosts"), wanted(request, LIBRARIES)) as hosts:
        yield hosts


@pytest.mark.peer
@pytest.mark.parametrize(("side", "script"), list(cases(LIBRARIES)))
async def test_a_script_passes_against_every_peer(side: Side, script: str, hosts: Hosts) -> None:
    address = hosts.address(side.host) + side.card
    await played(side, script, lambda **more: client(side, address, **more))


@pytest.mark.peer
@pytest.mark.parametrize("side", LIBRARIES, ids=lambda side: side.id)
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
@pytest.mark.parametrize("host", list(NEWEST))
async def test_the_host_alone_leads_to_the_newest_version(host: str, hosts: Hosts) -> None:
    # Without a scheme, as a person types it.
    bare = hosts.address(host).removeprefix("http://")
    async with Client(bare) as agent:
        assert (await agent.send("echo hello")).text == "hello"
        spoken = (agent.interface.protocol_version[:3], agent.interface.protocol_binding)
    assert spoken == NEWEST[host]


@pytest.mark.peer
async def test_a_result_that_a_stream_does_not_show_is_read_before_the_end_is_told(
    hosts: Hosts,
) -> None:
    async with Client(hosts.address("fasta2a-2.1.1-readme")) as agent:
        follow = agent.stream("echo hello")
        events = [event async for event in follow]
    assert follow.answer.text == "hello"
    # The result, and then that the task is complete.
    assert [type(event) for event in events[-2:]] == [ArtifactUpdate, StatusUpdate]
    assert follow.leniencies == {FOUND_LATER}


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
@pytest.mark.parametrize(
    "side", [one for one in LIBRARIES if one.is_joined], ids=lambda side: side.id
)
async def test_a_stream_that_is_cut_reads_as_if_it_was_not(
    side: Side, cuts: str, hosts: Hosts, tmp_path: Path
) -> None:
    address = hosts.address(side.host)
    async with client(side, address + side.card) as agent:
        shown = json.dumps(agent.raw_card)
        await agent.connect()
        is_rpc = side.binding == "GRPC"
        # Of gRPC the card names host and port alone.
        address = agent.interface.url if is_rpc else address
    card = tmp_path / "card.json"
    with anyio.fail_after(SCRIPT_WITHIN):
        async with cutting(address, CUTS[cuts], cuts_all=is_rpc) as proxy:
            before, after = address, proxy.address
            if is_rpc:
                before, after = (one.removeprefix("http://") for one in (before, after))
            card.write_text(shown.replace(before, after))
            async with client(side, card) as agent:
                pieces = [piece async for piece in agent.stream_text(f"chunks {CHUNKS}")]
            # After the first, a client may go on without a stream that could be cut.
            assert len(proxy.cuts) < len(CUTS[cuts])
    assert "".join(pieces) == WHOLE


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a person does, with a home of its own."""
    # Whatever the machine is set to has no say.
    names = [name for name in os.environ if name.startswith(("DRAGOMAN_", "A2ACLI_"))]
    env = {name: value for name, value in os.environ.items() if name not in names}
    env |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    code, out, err = nursery.run(words, folder, env, None, SCRIPT_WITHIN)
    return subprocess.CompletedProcess(words, code, out.decode(), err.decode())


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
@pytest.mark.parametrize("host", list(NEWEST))
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
