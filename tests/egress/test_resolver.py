"""Look-ups of names in threads of their own, some of which never end by themselves."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from dragoman.egress.resolver import THREADS, Names

WITHIN = 60.0


class Directory:
    """A resolver whose names that begin with `slow` wait until they are let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let_go = threading.Event()

    def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        if host.startswith("slow"):
            self.let_go.wait(WITHIN)
        if host == "none":
            raise OSError("no such name")
        return ["192.0.2.1"]


@pytest.fixture
def directory() -> Iterator[Directory]:
    directory = Directory()
    yield directory
    directory.let_go.set()


async def stirred(directory: Directory, count: int) -> None:
    """Wait until so many names were asked for."""
    async with asyncio.timeout(WITHIN):
        # Threads tell nobody.
        while len(directory.asked) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_slow_names_keep_neither_known_names_nor_other_work_waiting(
    directory: Directory,
) -> None:
    names = Names(directory.look_up)
    assert await names.resolve("known") == ["192.0.2.1"]
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(names.resolve(f"slow{n}")) for n in range(4 * THREADS)]
        most = THREADS - THREADS // 4
        await stirred(directory, 1 + most)
        async with asyncio.timeout(WITHIN / 2):
            assert await names.resolve("known") == ["192.0.2.1"]
            await asyncio.to_thread(lambda: None)
        assert len(directory.asked) == 2 + most
        for one in waiting:
            one.cancel()
    directory.let_go.set()
    # Those that queued for a thread left the queue with whoever wanted them.
    assert await asyncio.wait_for(names.resolve("other"), WITHIN) == ["192.0.2.1"]
    assert len(directory.asked) == 3 + most
    names.close()


async def test_all_who_want_one_name_share_a_look_up_and_the_next_asks_anew(
    directory: Directory,
) -> None:
    names = Names(directory.look_up)
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(names.resolve("slow")) for _ in range(50)]
        await stirred(directory, 1)
        waiting[0].cancel()
        directory.let_go.set()
    assert directory.asked == ["slow"] and waiting[1].result() == ["192.0.2.1"]
    await names.resolve("slow")
    assert directory.asked == ["slow", "slow"]
    names.close()


async def test_a_name_that_is_not_there_is_an_error_and_a_closed_resolver_opens_anew(
    directory: Directory,
) -> None:
    names = Names(directory.look_up)
    with pytest.raises(OSError, match="no such name"):
        await names.resolve("none")
    names.close()
    assert await names.resolve("some") == ["192.0.2.1"]
    names.close()


async def test_the_systems_resolver_finds_this_machine() -> None:
    names = Names()
    assert "127.0.0.1" in await asyncio.wait_for(names.resolve("localhost"), WITHIN)
    names.close()
