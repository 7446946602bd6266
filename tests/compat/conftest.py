"""Servers of selectools' kind, closed when their test is over."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dragoman.compat.selectools import A2AServer
from tests.compat.agents import Researcher


@pytest.fixture
def make() -> Iterator[Callable[..., A2AServer]]:
    made: list[A2AServer] = []

    def build(agent: Any = None, **more: Any) -> A2AServer:
        made.append(A2AServer(agent or Researcher(), **more))
        return made[-1]

    yield build
    for server in made:
        server.close()
