"""A server that knows the callers of the tables, and tasks of one of them in every state."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.serving import hosting

from dragoman import App
from proof.access.matrix import Scene
from proof.access.tenancy_agent import agent
from tests.matrix.sites import settings_in


@asynccontextmanager
async def scene_in(
    folder: Path, *operations: str, **settings: Any
) -> AsyncGenerator[tuple[Scene, App]]:
    """Serve from a folder and make the tasks for some operations, or for all of them."""
    app = App(agent, settings=settings_in(folder, **({"metrics": False} | settings)))
    async with hosting(app) as url:
        scene = Scene(int(url.rpartition(":")[2]), operations)
        await scene.make("deleted")
        gone = await app.store.prune(ended_before=int(time.time() * 1000) + 1, keep=0)
        assert gone == len(scene.things)
        await scene.make("working", "waiting", "finished")
        try:
            yield scene, app
        finally:
            scene.wire.close()


@pytest.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    async with scene_in(tmp_path_factory.mktemp("matrix")) as (scene, _):
        yield scene
