"""Settings that lose what was acknowledged are used only by those who say so."""

from pathlib import Path

import pytest

from dragoman import Agent, App, Settings
from dragoman.config import StoreSettings
from dragoman.errors import ConfigError
from dragoman.stores.sqlite import SQLiteStore
from dragoman.stores.sqlite.schema import run


@pytest.mark.parametrize("level", ["normal", "off"])
def test_a_store_that_does_not_wait_for_the_disk_is_refused(level: str, tmp_path: Path) -> None:
    settings = Settings(
        stores=StoreSettings(location=str(tmp_path / "tasks.db"), synchronous=level)
    )  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--i-accept-data-loss"):
        App(Agent("A", "a"), settings=settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("level", "number"), [("off", 0), ("normal", 1), ("full", 2)])
async def test_whoever_accepts_the_loss_gets_the_level_they_named(
    level: str, number: int, tmp_path: Path
) -> None:
    settings = Settings(
        stores=StoreSettings(
            location=str(tmp_path / "tasks.db"), synchronous=level, accept_data_loss=True
        )
    )
    app = App(Agent("A", "a"), settings=settings)
    assert isinstance(app.store, SQLiteStore)
    await app.store.open()
    seen: list[object] = []
    await app.store._do(lambda connection: seen.extend(run(connection, "PRAGMA synchronous")))
    assert seen == [(number,)]
    await app.store.close()
