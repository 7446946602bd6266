"""What `dragoman doctor` says of standbys: also where the user of the database may not see them."""

import asyncio
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.databases import Databases
from harness.waiting import wait_until

from dragoman.cli.operating.checks.database import OF_THE_DATABASE
from dragoman.stores.postgres import Addresses
from dragoman.stores.postgres.operating.health import DatabaseFacts, Standby, database_facts

FACTS = DatabaseFacts(
    version="18",
    schema=9,
    size=1,
    settings={},
    is_standby=False,
    standbys=[],
    waits_for_standby=True,
    sees_others=True,
    connections=1,
    most_connections=100,
    waiting_commits=0,
    waiting_ms=0,
    dead_share=0.0,
    dead_table="",
    wraparound=1 << 30,
    oldest_transaction=0,
    partitions=1,
    kept_log=0,
    unsealed=0,
    unsealed_ms=0,
)
SYNC, ASYNC, HIDDEN = Standby("a", "sync", 5), Standby("b", "async", 9), Standby("", "", None)


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (FACTS, "problem", "commits wait for a standby, and none answers"),
        (FACTS._replace(standbys=[ASYNC]), "problem", "none answers"),
        (FACTS._replace(standbys=[SYNC, ASYNC]), "ok", "2 standbys, 0.0 MB behind"),
        (FACTS._replace(waits_for_standby=False), "warning", "there is no standby"),
        # With `synchronous_commit = local` too, whatever the standby is called.
        (FACTS._replace(standbys=[SYNC], waits_for_standby=False), "warning", "for none of them"),
        (FACTS._replace(standbys=[HIDDEN], sees_others=False), "warning", "may not see how far"),
        (FACTS._replace(sees_others=False), "problem", "none answers"),
    ],
)
def test_a_standby_is_judged_by_what_can_be_seen_of_it(
    facts: DatabaseFacts, level: str, words: str
) -> None:
    found = OF_THE_DATABASE["replication"](cast(Any, SimpleNamespace(database=facts)))
    assert found.level == level and words in found.message


def test_a_user_without_rights_sees_that_there_is_a_standby_and_how_full_the_server_is(
    databases: Databases, database: str, tmp_path: Path
) -> None:
    server, name = databases.server, database.rpartition("/")[2]
    server.sql(f"CREATE ROLE plain_{name} LOGIN", name)
    server.sql(f"GRANT SELECT ON dragoman_schema, transfers TO plain_{name}", name)
    places = Addresses(database), Addresses(database.replace("postgres@", f"plain_{name}@"))
    # It takes the log as a standby does.
    words = ["-D", str(tmp_path), "-d", server.url(), "--no-loop", "--synchronous"]
    with subprocess.Popen([str(server._bin / "pg_receivewal"), *words]) as standby:
        try:
            wait_until(lambda: server.sql("SELECT state FROM pg_stat_replication") != "")
            seen, hidden = [asyncio.run(database_facts(one)) for one in places]
        finally:
            standby.kill()
    assert seen.sees_others and [one.kind for one in seen.standbys] == ["async"]
    assert not hidden.sees_others and [one[1:] for one in hidden.standbys] == [("", None)]
    assert hidden.behind is None and hidden.connections >= 1
    assert not hidden._replace(waits_for_standby=True).lacks_standby
