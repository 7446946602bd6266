"""Facts: what is recorded of agents, what of it counts, and that scores follow from it alone."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import apsw
import pytest
from gateway.observing import DAY, NOW, Past, end, opened
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import InvalidParams
from dragoman.gateway import ratings
from dragoman.gateway.scores import POLICIES, score
from dragoman.gateway.standing import Rules, facts_in, standing_of
from dragoman.gateway.task_reference import TaskReference
from dragoman.gateway.trust_export import (
    computed,
    counted,
    export,
    fold,
    verify_file,
    verify_store,
)
from dragoman.model.identity import LOCAL, Principal
from dragoman.stores.sqlite import trust
from dragoman.stores.sqlite.schema import run, transaction

CREATED = {"a": NOW, "b": NOW - 365 * DAY}
WAY = {"policy": "nexus", "cap": 20, "at": NOW}


def points(connection: apsw.Connection, id: str = "a", policy: str = "nexus", cap: int = 20) -> int:
    return score(facts_in(connection, CREATED, cap, NOW)[id], policy).value


def events(connection: apsw.Connection) -> list[tuple[str, int]]:
    return [(one.type, one.score) for one in trust.after(connection, 0, 10_000)]


def test_outcomes_become_events_with_the_scores_that_are_written_down() -> None:
    connection = opened()
    end(
        connection,
        Past(seconds=149),
        Past(seconds=150),
        Past(seconds=300),
        Past(seconds=301),
        Past(state="failed"),
        Past(state="failed", cause="unreachable"),
        Past(state="failed", cause="timeout"),
        Past(state="failed", due_at=NOW),
        Past(state="failed", due_at=NOW + 1),
        Past(state="rejected"),
        Past(state="canceled"),
        Past(state="failed", agent=""),
        Past(state="failed", cause="busy"),
    )
    assert ratings.observe(connection, 100) == 13
    assert events(connection) == [
        ("task_completed", 3),
        ("task_completed", 2),
        ("task_completed", 1),
        ("task_completed", 1),
        ("sla_breach", -2),
        ("task_failed", -3),
        ("task_failed", -3),
        ("task_timeout", -4),
        ("task_timeout", -4),
        ("task_failed", -3),
        ("task_failed", -3),
    ]
    assert verify_store(connection, CREATED, **WAY).problem == ""


def test_an_outcome_is_recorded_once_however_often_it_is_looked_for() -> None:
    connection = opened()
    end(connection, Past())
    assert [ratings.observe(connection, 10) for _ in range(3)] == [1, 0, 0]
    # As if the note of it had been lost.
    run(connection, "UPDATE errands SET is_observed = 0")
    ratings.observe(connection, 10)
    assert events(connection) == [("task_completed", 3)]
    assert facts_in(connection, CREATED, 20, NOW)["a"].completed == 1
    assert points(connection) == 72


def test_a_requesters_own_cancel_says_nothing_of_the_agent() -> None:
    connection = opened()
    end(connection, Past(), *[Past(state="canceled")] * 30)
    ratings.observe(connection, 100)
    assert points(connection) == 72


def test_a_thousand_new_identities_that_never_paid_move_a_score_by_nothing() -> None:
    connection = opened()
    end(connection, Past(), Past(seconds=60))
    ratings.observe(connection, 10)
    before = points(connection), points(connection, policy="corvid")
    ids = end(connection, *[Past(requester=f"new{n}") for n in range(500)])
    end(connection, *[Past(requester=f"new{n}", state="failed") for n in range(500, 1000)])
    # Whoever pays themselves has paid nobody.
    end(connection, *[Past(requester=f"own{n}", payee=f"own{n}", charged=5) for n in range(20)])
    end(connection, *[Past(requester=f"own{n}", state="failed") for n in range(20)])
    ratings.observe(connection, 2000)
    for n, task in enumerate(ids[:50]):
        ratings.rate(connection, "a", TaskReference(task), Principal.read(f"new{n}"), 1, "", NOW)
    assert (points(connection), points(connection, policy="corvid")) == before
    assert verify_store(connection, CREATED, **WAY).scores["a"] == before[0]
    # The same from people who paid moves it.
    end(connection, *[Past(requester=f"new{n}", agent="b", charged=1) for n in range(500, 600)])
    ratings.observe(connection, 200)
    assert points(connection) < before[0] - 20


def test_nobody_can_speak_for_their_own_agent() -> None:
    connection = opened()
    end(connection, Past(requester="owner", agent="b", payee="else", charged=9))
    (task,) = end(connection, Past(requester="owner", payee="owner"))
    ratings.observe(connection, 10)
    ratings.rate(connection, "a", TaskReference(task), Principal.read("owner"), 5, "", NOW)
    assert points(connection) == 50
    assert trust.totals(connection, "a").completed == 1


def test_the_local_user_is_believed_without_having_paid_also_of_their_own_agents() -> None:
    connection = opened()
    end(connection, Past(requester="", payee=""))
    ratings.observe(connection, 10)
    assert points(connection) == 72


def test_one_requester_counts_for_so_many_tasks_a_day_and_no_more() -> None:
    connection = opened()
    end(connection, *[Past(requester="bob", charged=1)] * 30)
    end(connection, *[Past(requester="eve", charged=1, agent="b")])
    ratings.observe(connection, 100)
    before = facts_in(connection, CREATED, 20, NOW)["a"]
    assert before.completed == 20
    end(connection, *[Past(requester="eve", state="failed")] * 500)
    ratings.observe(connection, 1000)
    after = facts_in(connection, CREATED, 20, NOW)["a"]
    assert (after.completed, after.failed) == (20, 20)
    end(connection, *[Past(requester="eve", state="failed", at=NOW - DAY)] * 500)
    ratings.observe(connection, 1000)
    assert facts_in(connection, CREATED, 20, NOW)["a"].failed == 40


def test_of_a_day_with_more_than_counts_each_outcome_counts_the_same() -> None:
    connection = opened()
    end(connection, *[Past(seconds=2)] * 30, *[Past(state="failed")] * 30)
    ratings.observe(connection, 100)
    facts = facts_in(connection, CREATED, 20, NOW)["a"]
    assert (facts.completed, facts.failed) == (10, 10)
    assert facts.response_ms / facts.completed == 2000


def test_ratings_are_taken_from_the_requester_of_a_completed_task_once() -> None:
    connection = opened()
    done, bad = end(connection, Past(requester="bob"), Past(requester="bob", state="failed"))
    ratings.observe(connection, 10)

    def refusal(agent: str, task: str, who: str, rating: Any, comment: str = "") -> str:
        with pytest.raises(InvalidParams) as found:
            meant, requester = TaskReference(task), Principal.read(who)
            ratings.rate(connection, agent, meant, requester, rating, comment, NOW)
        return str(found.value)

    assert "no such task" in refusal("a", "unknown", "bob", 5)
    # Of somebody else: it reads the same.
    assert refusal("a", done, "eve", 5) == refusal("a", "unknown", "eve", 5)
    assert "not done by this agent" in refusal("b", done, "bob", 5)
    assert "not completed" in refusal("a", bad, "bob", 5)
    for wrong in (0, 6, 4.5, True, "5"):
        assert "from 1 to 5" in refusal("a", done, "bob", wrong)
    assert "1000 characters" in refusal("a", done, "bob", 5, comment="x" * 1001)
    ratings.rate(connection, "a", TaskReference(done), Principal.read("bob"), 4, "x" * 1000, NOW)
    assert "already rated" in refusal("a", done, "bob", 5)
    assert events(connection)[-1] == ("rating_received", 4)
    assert [row[0] for row in run(connection, "SELECT rating FROM ratings")] == [4]


def test_an_upheld_dispute_makes_the_outcome_a_failure_and_a_rejected_one_nothing() -> None:
    connection = opened()
    one, two = end(connection, Past(), Past(seconds=60))
    ratings.dispute(connection, "a", TaskReference(one), LOCAL, "it was empty", NOW)
    with pytest.raises(InvalidParams, match="already disputed"):
        ratings.dispute(connection, "a", TaskReference(one), LOCAL, "again", NOW)
    with pytest.raises(InvalidParams, match="no such task"):
        ratings.dispute(connection, "a", TaskReference(one), Principal.read("eve"), "not mine", NOW)
    ratings.dispute(connection, "a", TaskReference(two), LOCAL, "it was late", NOW)
    # Decided before the outcomes were looked at: that makes no difference.
    ratings.resolve(connection, TaskReference(one), True, "indeed", NOW)
    assert verify_store(connection, CREATED, **WAY).problem == ""
    ratings.observe(connection, 10)
    before = facts_in(connection, CREATED, 20, NOW)["a"]
    assert (before.completed, before.failed, before.response_ms) == (1, 1, 60_000)
    ratings.resolve(connection, TaskReference(two), False, "", NOW)
    assert facts_in(connection, CREATED, 20, NOW)["a"] == before
    with pytest.raises(InvalidParams, match="no open dispute"):
        ratings.resolve(connection, TaskReference(two), True, "", NOW)
    with pytest.raises(InvalidParams, match="not completed"):
        ratings.rate(connection, "a", TaskReference(one), Principal.read(""), 5, "", NOW)
    assert [type for type, _ in events(connection)].count("dispute_resolved") == 2
    assert verify_store(connection, CREATED, **WAY).problem == ""


def test_three_violations_within_a_day_blacklist_until_they_are_long_past() -> None:
    connection = opened()
    end(connection, *[Past()] * 10)
    ratings.observe(connection, 10)
    for at in (NOW - 2 * DAY, NOW - DAY // 2, NOW):
        ratings.violate(connection, "a", "a card of another origin", at)
    assert points(connection, policy="corvid") > 0
    ratings.violate(connection, "a", "a card of another origin", NOW - DAY + 1)
    assert points(connection, policy="corvid") == 0
    later = facts_in(connection, CREATED, 20, NOW + 91 * DAY)["a"]
    assert not later.is_blacklisted and later.violations == 0


# One thing that may happen, as small numbers that a search can shrink.
deeds = st.lists(
    st.tuples(
        st.sampled_from(["end", "observe", "rate", "dispute", "resolve", "violate", "crash"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["", "bob", "eve", "owner"]),
        st.sampled_from(["completed", "failed", "canceled"]),
        st.integers(0, 5),
        st.integers(0, 400),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(deeds, st.integers(1, 4), st.integers())
def test_sums_that_were_kept_along_the_way_are_what_the_log_gives_in_any_order(
    story: list[tuple[str, str, str, str, int, int]], cap: int, seed: int
) -> None:
    connection = opened()
    tasks: list[tuple[str, str, str]] = []
    for what, id, who, state, small, large in story:
        try:
            with transaction(connection):
                if what == "end":
                    past = Past(id, who, "owner", state, large, small % 2, NOW - small % 3 * DAY)
                    tasks += [(end(connection, past)[0], id, who)]
                elif what == "observe":
                    ratings.observe(connection, small + 1)
                elif what == "violate":
                    ratings.violate(connection, id, "x", NOW - large)
                elif what == "crash":
                    ratings.observe(connection, small + 1)
                    raise OSError
                elif tasks:
                    task, of, owner = tasks[large % len(tasks)]
                    if what == "rate":
                        ratings.rate(
                            connection,
                            of,
                            TaskReference(task),
                            Principal.read(owner),
                            small,
                            "",
                            NOW,
                        )
                    elif what == "dispute":
                        who = Principal.read(owner)
                        ratings.dispute(connection, of, TaskReference(task), who, "no", NOW)
                    else:
                        ratings.resolve(connection, TaskReference(task), small > 2, "", NOW)
        except (InvalidParams, OSError):
            pass
    ratings.observe(connection, 100)
    report = verify_store(connection, CREATED, policy="nexus", cap=cap, at=NOW)
    assert report.problem == "" and report.waiting == 0
    log = trust.after(connection, 0, 10_000)
    shuffled = random.Random(seed).sample(log * 2, len(log) * 2)
    sums = trust.sums(connection, None, cap=cap, recent=NOW // DAY - 90, active=NOW // DAY - 30)
    assert counted(fold(shuffled), cap, NOW // DAY) == sums
    for policy in POLICIES:
        way = {"policy": policy, "cap": cap, "at": NOW}
        again = computed(shuffled, CREATED, **way)  # type: ignore[arg-type]  # of three types
        for id in CREATED:
            rules = Rules(policy, cap)
            standing = standing_of(connection, id, id, CREATED[id], rules, NOW)
            assert standing.score.value == again[id]


def recorded() -> apsw.Connection:
    connection = opened()
    tasks = end(connection, Past(), Past(agent="b", requester="bob", charged=3), Past(seconds=400))
    ratings.observe(connection, 10)
    ratings.rate(connection, "b", TaskReference(tasks[1]), Principal.read("bob"), 5, "fine", NOW)
    return connection


def test_an_export_gives_the_same_scores_to_whoever_has_nothing_else(tmp_path: Path) -> None:
    connection = recorded()
    path = tmp_path / "trust.jsonl"
    told = export(connection, path, CREATED, policy="nexus", cap=20, at=NOW)
    assert path.stat().st_mode & 0o077 == 0
    found = verify_file(path)
    assert found == told and found.problem == "" and found.events == 5
    assert found.scores == {id: points(connection, id) for id in "ab"}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one["hash"] for one in lines[:-1]] == [one["prev"] for one in lines[1:]]
    assert "fine" not in path.read_text()


def test_an_export_in_which_anything_was_changed_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "trust.jsonl"
    export(recorded(), path, CREATED, policy="nexus", cap=20, at=NOW)
    whole = path.read_bytes().splitlines(keepends=True)

    def problem(lines: list[bytes]) -> str:
        path.write_bytes(b"".join(lines))
        return verify_file(path).problem

    assert problem(whole) == ""
    assert "hash does not fit" in problem(
        [whole[0].replace(b'"score":3', b'"score":2'), *whole[1:]]
    )
    assert "does not follow" in problem(whole[1:])
    assert "does not follow" in problem([whole[1], whole[0], *whole[2:]])
    assert "end is missing" in problem(whole[:-1])
    assert "after the summary" in problem([*whole, whole[-1]])
    assert "hash does not fit" in problem([*whole[:-1], whole[-1].replace(b'"at":1', b'"at":2')])


def test_a_summary_that_lies_with_a_hash_that_fits_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "trust.jsonl"
    export(recorded(), path, CREATED, policy="nexus", cap=20, at=NOW)
    *lines, last = path.read_bytes().splitlines(keepends=True)
    body = last.rpartition(b',"hash":"')[0] + b"}"
    assert b'"scores":{"a":' in body
    lie = body.replace(b'"scores":{"a":', b'"scores":{"a":1')
    digest = hashlib.sha256(lie).hexdigest().encode()
    path.write_bytes(b"".join(lines) + lie[:-1] + b',"hash":"' + digest + b'"}\n')
    assert "the score is told as" in verify_file(path).problem


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("UPDATE trust_events SET body = CAST(body || ' ' AS BLOB) WHERE number = 2", "hash"),
        ("DELETE FROM trust_events WHERE number = 2", "does not follow"),
        ("UPDATE trust_events SET agent = 'b' WHERE number = 1", "filed under"),
        ("UPDATE trust_days SET completed = completed + 1", "sums"),
        ("INSERT INTO payers VALUES ('eve')", "sums"),
        ("UPDATE errands SET state = 'TASK_STATE_FAILED' WHERE task = 1", "task 1:"),
        ("UPDATE errands SET requester = 'eve' WHERE task = 1", "task 1:"),
        ("DELETE FROM errands WHERE task = 3", "task 3:"),
    ],
)
def test_a_store_in_which_anything_was_changed_is_found_out(change: str, told: str) -> None:
    connection = recorded()
    assert verify_store(connection, CREATED, **WAY).problem == ""
    run(connection, change)
    assert told in verify_store(connection, CREATED, **WAY).problem


def test_a_score_is_explained_in_sentences_that_add_up() -> None:
    connection = recorded()
    end(connection, Past(requester="stranger", state="failed"))
    ratings.observe(connection, 10)
    found = standing_of(connection, "a", "echo", NOW, Rules(), NOW)
    said = found.sentences()
    assert said[0] == f"echo has {found.score.value} of 100: {found.score.badge}."
    assert said[1] == ("reliability 100: 40 of 40 points; 2 of 2 tasks that count were completed.")
    assert "Of 3 observed outcomes 2 count" in said[-1]
