"""A log replays to where its code was, and code that does something else is told so."""

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dragoman import Agent, Turn
from dragoman.engine.running.replay import CodeChanged, Replay, read_replay
from dragoman.model.events import (
    AttemptStarted,
    CancelRequested,
    DeadlineSet,
    Delegated,
    Event,
    MessageAdded,
    StepKind,
    StepRecorded,
    TurnBegan,
)
from dragoman.model.identity import MessageId, Scope
from dragoman.model.message import Message, Part, Role
from dragoman.model.operations import SendMessage
from dragoman.model.record import decode_event, encode_event
from dragoman.model.task import TaskState
from tests.engine.engines import House

STEP, SLEEP, ASK, ANSWER = StepKind.STEP, StepKind.SLEEP, StepKind.ASK, StepKind.ANSWER


def said(text: str) -> SendMessage:
    return SendMessage(message=Message(MessageId(text), Role.USER, [Part(text=text)]))


def step(index: int, name: str, value: Any = None, kind: StepKind = STEP) -> StepRecorded:
    return StepRecorded(kind, index, name, msgspec.Raw(msgspec.json.encode(value)))


def fed(*events: Event) -> Replay:
    """Return the progress that a log tells of, as it is read from disk."""
    replay = Replay([said("m0")])
    for event in events:
        replay.apply(decode_event(encode_event(event)))
    return replay


class Deed(NamedTuple):
    """One thing the code of a test does."""

    kind: StepKind
    name: str


# What code does in one turn: an ask takes the next message.
deeds = st.builds(Deed, st.sampled_from([STEP, SLEEP, ANSWER]), st.sampled_from("abc"))
programs = st.lists(deeds, max_size=8)


def run(program: list[Deed], log: list[Event], *, dies_after: int) -> list[Any] | None:
    """Run code on a log until so many events are added; return its results if it came to its end.

    The code's own Replay is kept up to date as a worker does it."""
    replay = fed(*log)
    room = dies_after

    def add(event: Event) -> bool:
        nonlocal room
        if room == 0:
            return False
        room -= 1
        log.append(event)
        replay.apply(event)
        return True

    results: list[Any] = []
    for deed in program:
        index, done = replay.recall(deed.kind, deed.name)
        if done is not None:
            results.append(msgspec.json.decode(done.value))
            continue
        if deed.kind is ANSWER:
            if not replay.is_asked(index) and not add(step(index, deed.name, kind=ASK)):
                return None
            if not replay.waiting:
                message = MessageAdded(said(f"m{len(replay.messages)}").message)
                if not add(message):
                    return None
            value: Any = replay.waiting[0][0]
        else:
            # No two are alike, so a step done twice would show.
            value = 1000 + len(log)
        if not add(step(index, deed.name, value, deed.kind)):
            return None
        results.append(value)
    replay.check_end()
    return results


@given(programs, st.lists(st.integers(0, 4), max_size=30))
def test_code_that_dies_anywhere_any_number_of_times_records_each_step_once(
    program: list[Deed], deaths: list[int]
) -> None:
    log: list[Event] = []
    for dies_after in deaths:
        run(program, log, dies_after=dies_after)
    results = run(program, log, dies_after=100)
    assert results is not None and len(results) == len(program)
    # Once it is done, running it again changes nothing and gives the same.
    length = len(log)
    assert run(program, log, dies_after=0) == results and len(log) == length
    done = [e for e in log if isinstance(e, StepRecorded) and e.kind is not ASK]
    assert [(e.kind, e.name) for e in done] == program
    assert [e.index for e in done] == list(range(len(program)))


def seen(replay: Replay) -> tuple[Any, ...]:
    """Return all that can be asked of a replay, but for what asking changes."""
    return (
        [operation.message.message_id for operation in replay.messages],
        replay.turn,
        [place for place, _ in replay.waiting],
        replay.attempt,
        replay.tries,
        replay.is_cancelled,
        replay.deadline,
        replay.is_behind,
        replay.is_asleep(0),
        [replay.is_asked(index) for index in range(6)],
    )


events = st.one_of(
    st.builds(AttemptStarted, st.integers(2, 9), counts=st.booleans()),
    st.builds(CancelRequested),
    st.builds(DeadlineSet, st.integers(1, 10**13)),
    st.builds(lambda n: MessageAdded(said(f"x{n}").message), st.integers(0, 99)),
    st.builds(TurnBegan, st.just(0)),
    st.builds(step, st.integers(0, 5), st.sampled_from("ab"), st.integers(0, 9)),
    st.builds(step, st.integers(0, 5), st.sampled_from("ab"), st.integers(1, 9), st.just(SLEEP)),
    st.builds(step, st.integers(0, 5), st.sampled_from("ab"), st.none(), st.just(ASK)),
)


@given(st.lists(events, max_size=20))
def test_every_beginning_of_a_log_replays_to_the_state_that_was_then(log: list[Event]) -> None:
    live = Replay([said("m0")])
    for length, event in enumerate(log):
        assert seen(live) == seen(fed(*log[:length]))
        live.apply(event)


@given(programs, programs, st.integers(0, 20))
def test_changed_code_either_does_the_same_as_far_as_it_is_recorded_or_is_refused(
    program: list[Deed], changed: list[Deed], dies_after: int
) -> None:
    log: list[Event] = []
    run(program, log, dies_after=dies_after)
    # An ask counts from its question on.
    begun = {e.index for e in log if isinstance(e, StepRecorded)}
    assert begun == set(range(len(begun)))
    is_same = changed[: len(begun)] == program[: len(begun)]
    if is_same:
        assert run(changed, log, dies_after=100) is not None
    else:
        with pytest.raises(CodeChanged, match="changed while the task was under way"):
            run(changed, log, dies_after=100)


@given(programs, st.integers(0, 20))
def test_code_that_is_refused_has_done_nothing_before(program: list[Deed], at: int) -> None:
    assume(program)
    log: list[Event] = []
    run(program, log, dies_after=100)
    at %= len(program)
    changed = [*program[:at], Deed(program[at].kind, "other"), *program[at + 1 :]]
    length = len(log)
    with pytest.raises(CodeChanged):
        run(changed, log, dies_after=100)
    assert len(log) == length


# What it says


@pytest.mark.parametrize(
    ("was", "kind", "name", "sentence"),
    [
        (step(0, "a"), STEP, "b", 'step 1 was step "a" and is step "b".'),
        (step(0, "a"), SLEEP, "a", 'step 1 was step "a" and is sleep "a".'),
        (step(0, "a", 5, SLEEP), ANSWER, "ask", 'step 1 was sleep "a" and is ask.'),
        (step(0, "ask", 0, ANSWER), STEP, "a", 'step 1 was ask and is step "a".'),
        (step(0, "ask", kind=ASK), STEP, "a", 'step 1 was ask and is step "a".'),
        (step(0, "ask", kind=ASK), ANSWER, "authorize", "step 1 was ask and is authorize."),
    ],
)
def test_a_difference_is_told_by_place_kind_and_name(
    was: StepRecorded, kind: StepKind, name: str, sentence: str
) -> None:
    with pytest.raises(CodeChanged) as told:
        fed(was).recall(kind, name)
    start = "The agent's code changed while the task was under way: "
    assert str(told.value) == start + sentence


def test_what_is_not_reached_any_more_is_told_by_the_first_of_it() -> None:
    replay = fed(step(0, "a"), step(1, "b"), step(2, "c"))
    replay.recall(STEP, "a")
    with pytest.raises(CodeChanged, match='step 2 was step "b" and is not reached any more'):
        replay.check_end()


def test_an_open_question_that_is_not_reached_any_more_is_told_too() -> None:
    with pytest.raises(CodeChanged, match="step 1 was ask and is not reached"):
        fed(step(0, "ask", kind=ASK)).check_end()


# Places


def failed(replay: Replay, index: int, name: str) -> None:
    replay.fail(StepRecorded(StepKind.FAILURE, index, name, msgspec.Raw(b'"boom"')))


def test_a_step_that_failed_has_its_place_when_it_is_tried_again() -> None:
    replay = fed()
    index, _ = replay.recall(STEP, "a")
    failed(replay, index, "a")
    assert replay.failures(STEP, "a") == []
    assert replay.recall(STEP, "a") == (0, None)
    assert replay.recall(STEP, "b") == (1, None)


def test_a_failure_the_code_goes_on_from_is_part_of_its_way() -> None:
    replay = fed()
    index, _ = replay.recall(STEP, "a")
    failed(replay, index, "a")
    (failure,) = replay.failures(STEP, "b")
    assert (failure.index, failure.name, failure.kind) == (0, "a", StepKind.FAILURE)
    replay.apply(failure)
    assert replay.recall(STEP, "b") == (1, None)
    again = fed(failure, step(1, "b"))
    assert again.recall(STEP, "a") == (0, failure)
    assert again.recall(STEP, "b")[1] == step(1, "b")
    again.check_end()


def test_a_failure_of_another_name_is_a_change() -> None:
    failure = step(0, "a", kind=StepKind.FAILURE)
    with pytest.raises(CodeChanged, match='step 1 was step "a" and is step "b"'):
        fed(failure).recall(STEP, "b")


def test_what_is_recorded_cannot_fail_any_more() -> None:
    replay = fed(step(0, "a"))
    replay.recall(STEP, "a")
    failed(replay, 0, "a")
    assert replay.failures(STEP, "b") == []


def test_code_is_behind_until_it_passed_all_that_is_recorded() -> None:
    replay = fed(step(0, "a"), step(1, "ask", kind=ASK))
    assert replay.is_behind
    replay.recall(STEP, "a")
    assert replay.is_behind
    replay.recall(ANSWER, "ask")
    assert not replay.is_behind and not fed().is_behind


# Turns and attempts


def test_a_turn_begins_without_the_steps_of_the_one_before() -> None:
    replay = fed(step(0, "a"), MessageAdded(said("m1").message), TurnBegan(1))
    assert replay.turn == 1 and replay.waiting == []
    assert replay.recall(STEP, "other") == (0, None)
    replay.check_end()


def test_attempts_count_from_the_last_step_and_not_while_asleep() -> None:
    replay = fed(AttemptStarted(2), AttemptStarted(3))
    assert (replay.attempt, replay.tries) == (3, 3)
    replay.apply(step(0, "a"))
    assert (replay.attempt, replay.tries) == (3, 1)
    replay.apply(AttemptStarted(4, counts=False))
    assert (replay.attempt, replay.tries) == (4, 1)


def test_only_the_last_thing_done_can_be_sleep() -> None:
    sleeping = step(0, "sleep", 5000, SLEEP)
    assert fed(sleeping).is_asleep(4999) and not fed(sleeping).is_asleep(5000)
    assert not fed(sleeping, step(1, "a")).is_asleep(0) and not fed().is_asleep(0)


def test_a_message_waits_until_it_answers_or_begins_a_turn() -> None:
    further = [MessageAdded(said(name).message) for name in ("m1", "m2", "m3")]
    replay = fed(*further, step(0, "ask", kind=ASK))
    assert [place for place, _ in replay.waiting] == [1, 2, 3]
    replay.apply(step(0, "ask", 1, ANSWER))
    assert [place for place, _ in replay.waiting] == [2, 3]
    replay.apply(TurnBegan(2))
    assert [place for place, _ in replay.waiting] == [3]


async def test_steps_are_found_behind_any_number_of_other_events(house: House) -> None:
    agent = Agent("Tester", "Is tested.")

    @agent.skill
    async def write(text: str, turn: Turn) -> None:
        await turn.step("first", str, "1")
        async with turn.artifact(name="long") as chunks:
            for _ in range(1500):
                await chunks.write("x")
        for _ in range(600):
            await turn.say("still here")
        await turn.step("second", str, "2")

    await house.start(agent)
    task = await house.send("go")
    assert task.status.state is TaskState.COMPLETED
    head = await house.store.head(Scope("tester", "", ""), task.id)
    assert head is not None
    replay = await read_replay(house.store, head.number)
    assert replay is not None
    for name in ("first", "second"):
        _, done = replay.recall(STEP, name)
        assert done is not None
    replay.check_end()


def test_what_is_said_again_of_the_same_child_is_no_progress() -> None:
    given = Delegated(0, 0, "Helper", "http://127.0.0.1:9", "")
    replay = fed(given, AttemptStarted(2), given)
    assert replay.tries == 2
    replay.apply(msgspec.structs.replace(given, task_id="t"))
    assert replay.tries == 1
    replay.apply(AttemptStarted(3))
    replay.apply(msgspec.structs.replace(given, task_id="t", seconds=1.0))
    assert replay.tries == 2
    assert replay.children[0, 0].seconds == 1.0
