"""What draws pages is loaded before anybody asks for one, while the server has little to do."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
from harness.serving import Site
from harness.waiting import eventually, within

from dragoman import Agent
from dragoman.console.part import ConsolePart
from dragoman.server import preloading
from dragoman.server.preloading import Preloading
from tests.console.sites import console


def preloading_of(site: Site) -> Preloading:
    (found,) = (part.preloading for part in site.app.site.parts if isinstance(part, ConsolePart))
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloading, "AFTER", 0.0)
    monkeypatch.setattr(preloading, "_ASKED_AGAIN", 0.001)
    # Whatever the machine does beside it.
    monkeypatch.setattr(preloading, "_BUSY", 1000.0)


async def test_a_server_loads_what_draws_pages_by_itself() -> None:
    async with console(Agent("Idle", "does nothing")) as site:
        found = preloading_of(site)

        async def is_loaded() -> bool:
            return found.is_loaded

        await eventually(is_loaded)


async def test_a_page_that_is_asked_for_earlier_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside other work nothing is loaded until a page is asked for."""
    monkeypatch.setattr(preloading, "_BUSY", -1.0)
    monkeypatch.setattr(preloading, "_PAUSE", 0.001)
    async with console(Agent("Busy", "does much")) as site:
        found, began = preloading_of(site), time.process_time()
        while time.process_time() - began < 0.05:  # noqa: ASYNC110 # it is the process that works
            await asyncio.sleep(0)
        assert not found.is_loaded
        page = await within(site.http.get("/console/tasks"))
        assert page.status_code == 200 and found.is_loaded


async def test_pieces_are_loaded_one_after_the_other_and_beside_the_loop() -> None:
    """Also where several pages are asked for at once."""
    loaded: list[int] = []
    threads: set[int] = set()

    def pieces() -> Iterator[None]:
        for number in range(5):
            threads.add(threading.get_ident())
            loaded.append(number)
            yield

    made = Preloading(pieces)
    running = asyncio.create_task(made.run())
    await within(asyncio.gather(*(made.finish() for _ in range(3))))
    assert made.is_loaded and loaded == [0, 1, 2, 3, 4]
    await within(running)
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("is_early", [False, True])
async def test_what_could_not_be_loaded_is_tried_again(*, is_early: bool) -> None:
    """Also if it was tried before any request for it."""
    loaded: list[str] = []
    fails = True

    def pieces() -> Iterator[None]:
        loaded.append("first")
        yield
        if fails:
            raise OSError("Too many open files")
        loaded.append("second")

    made = Preloading(pieces)
    if is_early:
        await within(made.run())
    for _ in range(2):
        with pytest.raises(OSError, match="open files"):
            await made.finish()
        assert not made.is_loaded
    fails = False
    await made.finish()
    assert made.is_loaded and loaded[-2:] == ["first", "second"]
