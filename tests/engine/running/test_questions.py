"""Which question a message answers, as the log tells it after a crash."""

import msgspec

from dragoman.engine.running.replay import ELSEWHERE, UNANSWERED, QuestionRecord, Replay
from dragoman.model.events import MessageAdded, StepKind, StepRecorded, TurnBegan
from dragoman.model.message import Message, Part
from dragoman.model.operations import SendMessage
from tests.engine.engines import message


def step(kind: StepKind, index: int, value: object = None) -> StepRecorded:
    body = (
        value.encoded()
        if isinstance(value, QuestionRecord)
        else msgspec.Raw(msgspec.json.encode(value))
    )
    return StepRecorded(kind, index, "ask", body)


def asked(count: int) -> Replay:
    replay = Replay([SendMessage(message=message("go", task="t"))])
    for index in range(count):
        replay.apply(step(StepKind.ASK, index))
    return replay


def answering(replay: Replay, *places: int) -> Message:
    parts = [Part(data={"toolUseId": replay.request_id(n), "result": n}) for n in places]
    return msgspec.structs.replace(message("", task="t"), parts=parts)


def places(replay: Replay) -> list[int]:
    return [place for place, _ in replay.waiting]


def test_a_message_that_answers_two_waits_until_both_have_it() -> None:
    """The process may die between the two."""
    replay = asked(3)
    said = answering(replay, 0, 2)
    replay.apply(MessageAdded(said))
    replay.apply(step(StepKind.ANSWER, 0, 1))
    assert places(replay) == [1] and replay.unanswered(said) == {replay.request_id(2)}
    replay.apply(step(StepKind.ANSWER, 2, 1))
    assert places(replay) == [] and replay.unanswered(said) == set()


def test_a_refused_message_is_no_answer_to_anything_and_the_question_stands() -> None:
    replay = asked(2)
    replay.apply(MessageAdded(message("no", task="t")))
    replay.apply(step(StepKind.ASK, 0, QuestionRecord(refused=1)))
    assert places(replay) == [] and replay.is_asked(0)
    assert replay.unanswered(answering(replay, 0)) == {replay.request_id(0)}


def test_an_answer_of_an_earlier_turn_is_still_known_as_one() -> None:
    replay = asked(1)
    late = answering(replay, 0)
    replay.apply(step(StepKind.ANSWER, 0, UNANSWERED))
    replay.apply(MessageAdded(message("more", task="t")))
    replay.apply(TurnBegan(1))
    assert replay.is_reply(late) and replay.unanswered(late) == set()
    replay.apply(step(StepKind.ASK, 0))
    assert replay.unanswered(late) == set() and replay.request_id(0) not in str(late)


def test_when_a_question_is_given_up_is_on_record() -> None:
    replay = asked(0)
    replay.apply(step(StepKind.ASK, 0, QuestionRecord(sensitive=True, due=77)))
    assert replay.due(0) == 77 and replay.is_asked(0, sensitive=True) and replay.is_discreet
    # As logs of earlier releases have it.
    old = asked(0)
    old.apply(step(StepKind.ASK, 0, True))
    assert old.is_asked(0, sensitive=True) and old.due(0) == 0


def test_a_sensitive_question_of_another_agent_is_none_of_the_codes() -> None:
    replay = asked(0)
    replay.apply(step(StepKind.ASK, ELSEWHERE, QuestionRecord(sensitive=True)))
    assert replay.is_discreet and not replay.is_behind
    replay.check_end()
    index, done = replay.recall(StepKind.STEP, "first")
    assert (index, done) == (0, None)
