"""A stream over gRPC whose server is killed while it is read: every event once, in order."""

from pathlib import Path

import pytest
from harness.processes import running
from harness.rpcs import AGENT
from harness.waiting import within

from dragoman import Client
from dragoman.model.events import StatusUpdate

pytestmark = pytest.mark.usefixtures("one_loop")

EVENTS = 12_000
KILLS = 3


async def test_a_reader_whose_server_is_killed_reads_every_event_once(tmp_path: Path) -> None:
    def server(place: str) -> object:
        store = tmp_path / "tasks.db"
        return running("serve", AGENT, "--listen", place, "--store", store, cwd=tmp_path)

    process = server("127.0.0.1:0")
    running_now = process.__enter__()
    address = running_now.ready()
    place = address.removeprefix("http://")
    try:
        async with Client(address, bindings=["grpc"]) as agent:
            follow = agent.stream(f"count {EVENTS}")
            said: list[str] = []
            kills = 0
            async for event in follow:
                if not isinstance(event, StatusUpdate) or event.status.message is None:
                    continue
                said.append(event.status.message.text)
                if len(said) == (kills + 1) * EVENTS // (KILLS + 2) and kills < KILLS:
                    kills += 1
                    if kills == 1:
                        # The agent's code ends before the first: it would say things again.
                        await within(agent.wait(follow.task.id))
                    running_now.kill()
                    process.__exit__(None, None, None)
                    process = server(place)
                    running_now = process.__enter__()
                    running_now.ready()
    finally:
        process.__exit__(None, None, None)
    assert kills == KILLS
    assert said == [str(number) for number in range(EVENTS)]
