"""Push notifications of a scripted agent: each event once, in order, to each receiver."""

import asyncio

from dragoman.dialects.dialect import Dialect
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError
from dragoman.model.push import PushConfig
from dragoman.model.record import Recorded
from dragoman.push.request import TOKEN_HEADER, authorization
from dragoman.testing.scripted.stage import Stage


class ScriptedPushes:
    """Posts to receivers, also on this machine."""

    def __init__(self) -> None:
        self._egress: Egress | None = None
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, stage: Stage, config_id: str, dialect: Dialect, index: int) -> None:
        """Post the events of a task from an index on, until it ends or the config is deleted."""
        posting = self._post_all(stage, config_id, dialect, index)
        task = asyncio.get_running_loop().create_task(posting)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Stop posting."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        egress, self._egress = self._egress, None
        if egress is not None:
            await egress.close()

    async def _post_all(self, stage: Stage, config_id: str, dialect: Dialect, index: int) -> None:
        if self._egress is None:
            self._egress = Egress(allow_private=True)
        egress = self._egress
        async for entry in stage.follow(index):
            config = stage.configs.get(config_id)
            if config is None:
                return
            if entry.event is None:
                continue
            recorded = Recorded.of_event(entry.seq, entry.event)
            if dialect.posts(recorded):
                body = dialect.encode_push(recorded, stage.task)
                await _post(egress, config, dialect, body)


async def _post(egress: Egress, config: PushConfig, dialect: Dialect, body: bytes) -> None:
    headers = {"content-type": dialect.push_content_type, "a2a-version": dialect.version}
    if config.token:
        headers[TOKEN_HEADER] = config.token
    if wanted := authorization(config.authentication):
        headers["authorization"] = wanted
    try:
        await egress.post(config.url, body, headers)
    except EgressError:
        # No retries: an unreachable receiver misses the post.
        return
