"""Facts: what is recorded of agents, what of it counts, and that scores follow from it alone."""

import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.errors import InvalidParams, StoreConflict
from dragoman.gateway.trust import observations
from dragoman.gateway.trust.counting import fold, sum_window
from dragoman.gateway.trust.export import (
    TrustReport,
    computed,
    export,
    verify_contents,
    verify_file,
)
from dragoman.gateway.trust.reputation import reputation_of
from dragoman.gateway.trust.scores import POLICIES, TrustRules, score
from dragoman.stores.at_once import at_once
from dragoman.stores.interface.effects import Effect, PutOrder
from dragoman.stores.sqlite.schema import run
from dragoman.stores.trust_sums import counted
from tests.gateway.money.order_stores import AT_ONCE
from tests.gateway.trust.ended_orders import DAY, NOW, Desk, Past

CREATED = {"a": NOW, "b": NOW - 365 * DAY}
RULES = TrustRules()


@pytest.fixture(params=AT_ONCE)
def desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(request.param)


def points(desk: Desk, id: str = "a", policy: str = "nexus", cap: int = 20) -> int:
    return score(desk.facts(CREATED, cap)[id], policy).value


def events(desk: Desk) -> list[tuple[str, int]]:
    return [(one.type, one.score) for one in desk.events()]


def verified(desk: Desk, rules: TrustRules = RULES) -> TrustReport:
    return verify_contents(desk.contents(), CREATED, rules, NOW)


def test_outcomes_become_events_with_the_scores_that_are_written_down(desk: Desk) -> None:
    desk.end(
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
    assert desk.observe(100) == 13
    assert events(desk) == [
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
    assert verified(desk).problem == ""


def test_an_outcome_is_recorded_once_however_often_it_is_looked_for(desk: Desk) -> None:
    desk.end(Past())
    assert [desk.observe(10) for _ in range(3)] == [1, 0, 0]
    # As if the note of it had been lost.
    if desk.connection is not None:
        run(desk.connection, "UPDATE errands SET is_observed = 0")
    desk.observe(10)
    assert events(desk) == [("task_completed", 3)]
    assert desk.facts(CREATED)["a"].completed == 1
    assert points(desk) == 72


def test_a_requesters_own_cancel_says_nothing_of_the_agent(desk: Desk) -> None:
    desk.end(Past(), *[Past(state="canceled")] * 30)
    desk.observe(100)
    assert points(desk) == 72


def test_a_thousand_new_identities_that_never_paid_move_a_score_by_nothing(desk: Desk) -> None:
    desk.end(Past(), Past(seconds=60))
    desk.observe(10)
    before = points(desk), points(desk, policy="corvid")
    ids = desk.end(*[Past(requester=f"new{n}") for n in range(500)])
    desk.end(*[Past(requester=f"new{n}", state="failed") for n in range(500, 1000)])
    # Whoever pays themselves has paid nobody.
    desk.end(*[Past(requester=f"own{n}", payee=f"own{n}", charged=5) for n in range(20)])
    desk.end(*[Past(requester=f"own{n}", state="failed") for n in range(20)])
    desk.observe(2000)
    for n, task in enumerate(ids[:50]):
        desk.rate("a", task, f"new{n}", 1, "")
    assert (points(desk), points(desk, policy="corvid")) == before
    assert verified(desk).scores["a"] == before[0]
    # The same from people who paid moves it.
    desk.end(*[Past(requester=f"new{n}", agent="b", charged=1) for n in range(500, 600)])
    desk.observe(200)
    assert points(desk) < before[0] - 20


def test_nobody_can_speak_for_their_own_agent(desk: Desk) -> None:
    desk.end(Past(requester="owner", agent="b", payee="else", charged=9))
    (task,) = desk.end(Past(requester="owner", payee="owner"))
    desk.observe(10)
    desk.rate("a", task, "owner", 5, "")
    assert points(desk) == 50
    assert at_once(desk.trust.totals("a")).completed == 1


def test_the_local_user_is_believed_without_having_paid_also_of_their_own_agents(
    desk: Desk,
) -> None:
    desk.end(Past(requester="", payee=""))
    desk.observe(10)
    assert points(desk) == 72


def test_one_requester_counts_for_so_many_tasks_a_day_and_no_more(desk: Desk) -> None:
    desk.end(*[Past(requester="bob", charged=1)] * 30)
    desk.end(*[Past(requester="eve", charged=1, agent="b")])
    desk.observe(100)
    before = desk.facts(CREATED)["a"]
    assert before.completed == 20
    desk.end(*[Past(requester="eve", state="failed")] * 500)
    desk.observe(1000)
    after = desk.facts(CREATED)["a"]
    assert (after.completed, after.failed) == (20, 20)
    desk.end(*[Past(requester="eve", state="failed", at=NOW - DAY)] * 500)
    desk.observe(1000)
    assert desk.facts(CREATED)["a"].failed == 40


def test_of_a_day_with_more_than_counts_each_outcome_counts_the_same(desk: Desk) -> None:
    desk.end(*[Past(seconds=2)] * 30, *[Past(state="failed")] * 30)
    desk.observe(100)
    facts = desk.facts(CREATED)["a"]
    assert (facts.completed, facts.failed) == (10, 10)
    assert facts.response_ms / facts.completed == 2000


def test_ratings_are_taken_from_the_requester_of_a_completed_task_once(desk: Desk) -> None:
    done, bad = desk.end(Past(requester="bob"), Past(requester="bob", state="failed"))
    desk.observe(10)

    def refusal(agent: str, task: str, who: str, rating: Any, comment: str = "") -> str:
        with pytest.raises(InvalidParams) as found:
            desk.rate(agent, task, who, rating, comment)
        return str(found.value)

    assert "no such task" in refusal("a", "unknown", "bob", 5)
    # Of somebody else: it reads the same.
    assert refusal("a", done, "eve", 5) == refusal("a", "unknown", "eve", 5)
    assert "not done by this agent" in refusal("b", done, "bob", 5)
    assert "not completed" in refusal("a", bad, "bob", 5)
    for wrong in (0, 6, 4.5, True, "5"):
        assert "from 1 to 5" in refusal("a", done, "bob", wrong)
    assert "1000 characters" in refusal("a", done, "bob", 5, comment="x" * 1001)
    desk.rate("a", done, "bob", 4, "x" * 1000)
    assert "already rated" in refusal("a", done, "bob", 5)
    assert events(desk)[-1] == ("rating_received", 4)
    assert [one.rating for one in at_once(desk.accounting.ledger.facts(done))] == [4]


def test_an_upheld_dispute_makes_the_outcome_a_failure_and_a_rejected_one_nothing(
    desk: Desk,
) -> None:
    one, two = desk.end(Past(), Past(seconds=60))
    desk.dispute("a", one, "", "it was empty")
    with pytest.raises(InvalidParams, match="already disputed"):
        desk.dispute("a", one, "", "again")
    with pytest.raises(InvalidParams, match="no such task"):
        desk.dispute("a", one, "eve", "not mine")
    desk.dispute("a", two, "", "it was late")
    # Decided before the outcomes were looked at: that makes no difference.
    desk.resolve(one, True, "indeed")
    assert verified(desk).problem == ""
    desk.observe(10)
    before = desk.facts(CREATED)["a"]
    assert (before.completed, before.failed, before.response_ms) == (1, 1, 60_000)
    desk.resolve(two, False, "")
    assert desk.facts(CREATED)["a"] == before
    with pytest.raises(InvalidParams, match="no open dispute"):
        desk.resolve(two, True, "")
    with pytest.raises(InvalidParams, match="not completed"):
        desk.rate("a", one, "", 5, "")
    assert [type for type, _ in events(desk)].count("dispute_resolved") == 2
    assert verified(desk).problem == ""


def test_three_violations_within_a_day_blacklist_until_they_are_long_past(desk: Desk) -> None:
    desk.end(*[Past()] * 10)
    desk.observe(10)
    for at in (NOW - 2 * DAY, NOW - DAY // 2, NOW):
        desk.violate("a", at)
    assert points(desk, policy="corvid") > 0
    desk.violate("a", NOW - DAY + 1)
    assert points(desk, policy="corvid") == 0
    later = desk.facts(CREATED, at=NOW + 91 * DAY)["a"]
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


def cut_off(desk: Desk, limit: int) -> None:
    """Observe, and have the last effect refused: nothing stays of it."""
    found = at_once(desk.trust.unobserved(limit))
    known = [PutOrder(facts.order) for facts in found[:1]]
    effects: Sequence[Effect] = [*observations.observe(found), *known]
    at_once(desk.accounting.apply(effects))


@pytest.mark.parametrize("kind", AT_ONCE)
@settings(max_examples=60)
@given(deeds, st.integers(1, 4), st.integers())
def test_sums_that_were_kept_along_the_way_are_what_the_log_gives_in_any_order(
    kind: str, story: list[tuple[str, str, str, str, int, int]], cap: int, seed: int
) -> None:
    desk = Desk(kind)
    tasks: list[tuple[str, str, str]] = []
    for what, id, who, state, small, large in story:
        try:
            if what == "end":
                past = Past(id, who, "owner", state, large, small % 2, NOW - small % 3 * DAY)
                tasks += [(desk.end(past)[0], id, who)]
            elif what == "observe":
                desk.observe(small + 1)
            elif what == "violate":
                desk.violate(id, NOW - large)
            elif what == "crash":
                cut_off(desk, small + 1)
            elif tasks:
                task, of, owner = tasks[large % len(tasks)]
                if what == "rate":
                    desk.rate(of, task, owner, small)
                elif what == "dispute":
                    desk.dispute(of, task, owner, "no")
                else:
                    desk.resolve(task, small > 2)
        except (InvalidParams, StoreConflict):
            pass
    desk.observe(100)
    report = verified(desk, TrustRules("nexus", cap))
    assert report.problem == "" and report.waiting == 0
    log = desk.events()
    shuffled = random.Random(seed).sample(log * 2, len(log) * 2)
    window = sum_window(cap, NOW)
    folded = fold(shuffled)
    sums, _ = at_once(desk.trust.figures(None, window))
    assert counted(folded.days, folded.payers, window) == sums
    for policy in POLICIES:
        rules = TrustRules(policy, cap)
        again = computed(shuffled, CREATED, rules, NOW)
        for id in CREATED:
            found = at_once(reputation_of(desk.trust, id, id, CREATED[id], rules, NOW))
            assert found.score.value == again[id]


def recorded(kind: str = "sqlite") -> Desk:
    desk = Desk(kind)
    tasks = desk.end(Past(), Past(agent="b", requester="bob", charged=3), Past(seconds=400))
    desk.observe(10)
    desk.rate("b", tasks[1], "bob", 5, "fine")
    return desk


def test_an_export_gives_the_same_scores_to_whoever_has_nothing_else(tmp_path: Path) -> None:
    desk = recorded()
    path = tmp_path / "trust.jsonl"
    told = export(desk.contents(), path, CREATED, RULES, NOW)
    assert path.stat().st_mode & 0o077 == 0
    found = verify_file(path)
    assert found == told and found.problem == "" and found.events == 5
    assert found.scores == {id: points(desk, id) for id in "ab"}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [one["hash"] for one in lines[:-1]] == [one["prev"] for one in lines[1:]]
    assert "fine" not in path.read_text()


def test_an_export_in_which_anything_was_changed_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "trust.jsonl"
    export(recorded("memory").contents(), path, CREATED, RULES, NOW)
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
    export(recorded("memory").contents(), path, CREATED, RULES, NOW)
    *lines, last = path.read_bytes().splitlines(keepends=True)
    body = last.rpartition(b',"hash":"')[0] + b"}"
    assert b'"scores":{"a":' in body
    lie = body.replace(b'"scores":{"a":', b'"scores":{"a":1')
    digest = hashlib.sha256(lie).hexdigest().encode()
    path.write_bytes(b"".join(lines) + lie[:-1] + b',"hash":"' + digest + b'"}\n')
    assert "the score is given as" in verify_file(path).problem


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
    desk = recorded()
    assert verified(desk).problem == ""
    assert desk.connection is not None
    run(desk.connection, change)
    assert told in verified(desk).problem


def test_a_score_is_explained_in_sentences_that_add_up() -> None:
    desk = recorded()
    desk.end(Past(requester="stranger", state="failed"))
    desk.observe(10)
    found = at_once(reputation_of(desk.trust, "a", "echo", NOW, RULES, NOW))
    said = found.sentences()
    assert said[0] == f"echo has {found.score.value} of 100: {found.score.badge}."
    assert said[1] == ("reliability 100: 40 of 40 points; 2 of 2 tasks that count were completed.")
    assert "Of 3 observed outcomes 2 count" in said[-1]
