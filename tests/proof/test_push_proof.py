"""The proof of push, small: it holds, and it can fail."""

import msgspec
import pytest

from dragoman.model.push import PushConfig
from dragoman.push import posting, request
from dragoman.push.schedule import PAUSES
from dragoman.stores.interface import DeadLetter, Push
from dragoman.stores.sqlite import SQLiteStore
from proof.wire import push
from proof.wire.receivers import Treatment


def small(seed: int) -> push.Result:
    return push.run(seed=seed, receivers=8, restarts=2, healthy=20)


def only_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the kinds that take time, and the parts about time, to the proof itself."""
    monkeypatch.setattr(push, "_FAILING", [Treatment.ERROR, Treatment.MOVED, Treatment.RESET])
    monkeypatch.setattr(push, "_schedule", _nothing)
    monkeypatch.setattr(push, "_neighbours", _nothing)


def test_no_webhook_is_lost_and_the_library_believes_each() -> None:
    result = small(7)
    assert (result.lost, result.reordered, result.unverified, result.irregular) == (0, 0, 0, 0)
    assert result.findings == []
    assert result.receivers == 8 and result.restarts == 2 and result.delivered > 20
    assert result.posts > result.delivered
    assert result.schedule_seconds * 1000 == sum(PAUSES)
    # The last row is about speed, which a busy machine does not show.
    assert all(row.kept for row in result.rows()[:-1])
    assert msgspec.json.decode(msgspec.json.encode(result))["lost"] == 0


def test_a_cursor_that_runs_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = SQLiteStore.settle

    async def hasty(self: SQLiteStore, told: Push, letter: DeadLetter | None = None) -> None:
        if told.tries:
            told = msgspec.structs.replace(told, cursor=told.cursor + 1)
        await settle(self, told, letter)

    monkeypatch.setattr(SQLiteStore, "settle", hasty)
    only_failures(monkeypatch)
    assert small(7).lost > 0


def test_a_signature_of_other_bytes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = request.headers

    def other(config: PushConfig, body: bytes, **given: object) -> dict[str, str]:
        return headers(config, body + b" ", **given)  # type: ignore[arg-type]

    monkeypatch.setattr(posting.request, "headers", other)
    only_failures(monkeypatch)
    result = small(7)
    assert result.unverified == result.posts > 0


async def _nothing(*arguments: object) -> None:
    pass
