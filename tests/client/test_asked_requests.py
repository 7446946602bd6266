"""A request under way: whatever fails around it, what was opened is closed and told as ours."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman.client.pending_request import Exchanged
from dragoman.client.remote import Remote
from dragoman.dialects.v1_0 import V1
from dragoman.egress.errors import EgressFailed
from dragoman.errors import Unreachable
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.service import Call
from tests.client.stub import Asked, Exchange, Said, Stub, card

CALL = Call(operation=ops.GetTask(task_id=TaskId("t")))


def silent(asked: Asked) -> Said:
    return Said(pieces=[b'{"jsonrpc": "2.0", "id": "1", "result": {}}'])


class Late(Stub):
    """A way on which closing fails."""

    @asynccontextmanager
    async def open(self, *asked: Any, **more: Any) -> AsyncGenerator[Exchange]:
        async with super().open(*asked, **more) as exchange:
            yield exchange
        raise EgressFailed("too late")


@pytest.mark.parametrize("kind", ["request", "answer", "event"])
async def test_an_observer_that_fails_leaves_nothing_open(kind: str) -> None:
    def look(seen: Exchanged) -> None:
        if seen.kind == kind:
            raise RuntimeError(kind)

    http = Stub(silent)
    remote = Remote(card().supported_interfaces[0], V1(), http, observer=look)
    with pytest.raises(RuntimeError, match=kind):
        await remote.answer(CALL)
    assert http.open_now == 0 and len(http.requests) == (kind != "request")


async def test_a_failure_of_closing_is_told_as_one_of_the_way() -> None:
    remote = Remote(card().supported_interfaces[0], V1(), Late(silent))
    with pytest.raises(Unreachable, match="too late"):
        await remote.answer(CALL)
