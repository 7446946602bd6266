"""The secret of a store is never empty: page tokens and signatures are made of it."""

from pathlib import Path

import pytest
from harness.waiting import within

from dragoman.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio


async def test_there_is_no_secret_before_it_is_prepared(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "tasks.db")
    with pytest.raises(RuntimeError, match="prepare"):
        _ = store.secret
    await store.open()
    try:
        await store.prepare()
        assert len(store.secret) == 32
    finally:
        await within(store.close())
