"""Every command, held against `routes.toml`: with the credential of each caller where it calls an
agent or a gateway; elsewhere the files it works on are their system user's alone."""

import re
import stat
from pathlib import Path

from proof.access.bindings import Answer
from proof.access.route_cells import RouteScene, filled, gather
from proof.access.route_table import RouteRow, of_app
from proof.access.route_things import Thing, Things
from tests.cli.command import Ended, call
from tests.matrix.sites import gateway_in

HINT = re.compile('"hint": ".*"')
# Commands that ask a gateway, and no agent.
GATEWAYS = ("agents", "credits", "rollouts", "triggers", "trust", "workflows")


class CommandScene(RouteScene):
    """Commands, as callers type them."""

    def __init__(self, things: Things, folder: Path) -> None:
        super().__init__(things, [row for row in of_app("commands") if row.cells])
        self._folder = folder
        things.fixed["folder"] = str(folder / "downloads")
        things.fixed["gateway"] = f"http://127.0.0.1:{things.wire.port}"

    def shape(self, row: RouteRow) -> str:
        return "gateway" if row.route.startswith(GATEWAYS) else "agent"

    async def ask(self, row: RouteRow, caller: str, thing: Thing) -> Answer:
        words = self._words(thing)
        typed = [*row.route.split(), *(filled(word, words) for word in row.words)]
        place = f"http://127.0.0.1:{self.things.wire.port}"
        env = {"DRAGOMAN_GATEWAY": place, "A2ACLI_API_KEY": self.things.keys[caller]}
        at = [] if row.route.startswith(GATEWAYS) else ["-a", place]
        ended = await call(*typed, *at, "-o", "json", cwd=self._folder, env=env)
        said, status = f"{ended.stdout}\n{ended.stderr}", status_of(ended)
        if status == 401:
            # It repeats what was typed.
            said = HINT.sub("", said)
        return Answer(status, b"", f"{ended.returncode}\n{said}".encode(), 0.0)


def status_of(ended: Ended) -> int:
    """Return the status of HTTP that is nearest to how a command ended."""
    if ended.returncode == 0:
        return 200
    return 401 if re.search("AUTH|CREDENTIALS", ended.stdout + ended.stderr) else 404


async def test_every_command_is_answered_as_the_table_says(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as (things, _):
        _, wrong = await gather(CommandScene(things, tmp_path))
    assert wrong == [], "\n".join(wrong)


async def test_what_a_gateway_writes_is_its_system_user_s_alone(tmp_path: Path) -> None:
    """That is what keeps the commands on files from other users of the machine."""
    folder = tmp_path / "data"
    folder.mkdir()
    async with gateway_in(folder) as (things, _):
        await things.shared("task")
        await things.shared("key")
        found = [path for path in folder.rglob("*") if path.is_file()]
        names = {path.name for path in found}
        assert {"tasks.db", "tasks.db-wal", "keys.json"} <= names, names
        open_to_others = [path.name for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert open_to_others == []
