"""Code that wants to end its server, in a server of its own."""

from pathlib import Path

from harness.processes import run, running
from harness.serving import Site, client
from harness.waiting import within

NASTY = """
import asyncio
from dragoman import Agent

agent = Agent("Nasty", "Wants to end the server.")

@agent.skill
async def callback(text: str) -> str:
    def fails():
        raise KeyboardInterrupt
    asyncio.get_running_loop().call_soon(fails)
    asyncio.get_running_loop().call_later(0.01, fails)
    await asyncio.sleep(0.05)
    return text

@agent.skill
async def done_callback(text: str) -> str:
    def fails(_):
        raise SystemExit(0)
    task = asyncio.create_task(asyncio.sleep(0))
    task.add_done_callback(fails)
    await asyncio.sleep(0.05)
    return text

@agent.skill
async def stops(text: str) -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    return text

@agent.skill
async def left_generator(text: str) -> str:
    async def chunks():
        try:
            yield 1
            yield 2
        finally:
            raise KeyboardInterrupt
    async for _ in chunks():
        break
    await asyncio.sleep(0.05)
    return text

@agent.skill
async def default_thread(text: str) -> str:
    return await asyncio.to_thread(next, iter([]))

@agent.skill
async def child(text: str) -> str:
    async def fails():
        raise KeyboardInterrupt
    return await asyncio.create_task(fails())

@agent.skill
async def itself(text: str) -> str:
    raise KeyboardInterrupt
"""


async def test_only_a_signal_ends_the_server(tmp_path: Path) -> None:
    (tmp_path / "nasty.py").write_text(NASTY)
    failing = ("left_generator", "default_thread", "child", "itself")
    with running("serve", "nasty.py", "--listen", "127.0.0.1:0", cwd=tmp_path) as child:
        async with client(child.ready()) as http:
            site = Site(child.url, http)
            for skill in (
                "callback",
                "done_callback",
                "stops",
                "left_generator",
                "default_thread",
                "child",
                "itself",
                "callback",
            ):
                task = await within(site.send("hi", metadata={"skillId": skill}))
                wanted = f"TASK_STATE_{'FAILED' if skill in failing else 'COMPLETED'}"
                assert task["status"]["state"] == wanted, (skill, child.log)
            assert (await http.get("/readyz")).status_code == 200
        assert child.process.poll() is None
        assert child.stop() == 0


def test_a_file_that_exits_while_it_is_loaded_is_told_and_not_obeyed(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import sys\nsys.exit(0)\n")
    ended = run("serve", "exits.py", "--listen", "127.0.0.1:0", cwd=tmp_path)
    assert ended.returncode != 0
    assert "it raised SystemExit while it was loaded" in ended.stderr
