"""What was shown of an artifact, held or as a digest: both tell the same of what a peer has."""

import random

import pytest

from dragoman.client.streams import replay_filter as module
from dragoman.client.streams.extent import Extent
from dragoman.client.streams.replay_filter import ReplayFilter
from dragoman.model.artifact import Artifact
from dragoman.model.events import ArtifactUpdate, StatusUpdate
from dragoman.model.identity import ContextId, MessageId, TaskId
from dragoman.model.message import Message, Part, Role
from dragoman.model.task import Task, TaskState, TaskStatus

IDS = TaskId("t"), ContextId("c")
WORKING = TaskStatus(TaskState.WORKING)


def text(*texts: str) -> list[Part]:
    return [Part(text=one) for one in texts]


def light(parts: list[Part]) -> Extent:
    return Extent(Artifact("a", parts), is_light=True)


@pytest.mark.parametrize("is_light", [False, True])
@pytest.mark.parametrize(
    ("shown", "parts", "rest", "is_ahead"),
    [
        (text("a", "b"), text("a", "b"), [], False),
        (text("a", "b"), text("a", "b", "c"), text("c"), False),
        (text("a", "b"), text("abc"), text("c"), False),
        (text("a", "b"), text("ab"), [], False),
        (text("a", "b"), text("a"), None, True),
        (text("a", "b"), [], None, True),
        (text("a", "b"), text("x", "y"), None, False),
        ([], text("a"), text("a"), False),
        ([Part(data=1)], [Part(data=1), Part(data=2)], [Part(data=2)], False),
        ([Part(data=1)], [Part(data=2)], None, False),
        ([Part(raw=b"1"), Part(text="a")], [Part(raw=b"1"), Part(text="a")], [], False),
        ([Part(data=1), Part(data=2)], [Part(data=1)], None, True),
    ],
)
def test_what_is_new_is_told_by_the_parts_and_by_their_digest(
    shown: list[Part],
    parts: list[Part],
    rest: list[Part] | None,
    is_ahead: bool,
    is_light: bool,
) -> None:
    extent = Extent(Artifact("a", shown), is_light=is_light)
    assert extent.after(parts) == rest
    assert extent.is_ahead_of(parts) is is_ahead


def test_a_digest_does_not_take_one_text_for_another() -> None:
    extent = light(text("a" * 5000))
    extent.extend(text("b" * 5000))
    assert extent.parts == []
    assert extent.after(text("a" * 5000 + "b" * 5000 + "c")) == text("c")
    assert extent.after(text("a" * 5000 + "b" * 4999 + "cc")) is None
    other = extent.copy()
    other.extend(text("more"))
    assert extent.after(text("a" * 5000, "b" * 5000)) == []
    assert other.after(text("a" * 5000, "b" * 5000)) is None


def test_a_light_fold_misses_what_a_whole_one_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HELD", 300)
    chance = random.Random(7)
    for _ in range(200):
        whole, small = ReplayFilter(), ReplayFilter(is_light=True)
        made: list[Part] = []
        for seen in (whole, small):
            seen.apply(Task(*IDS, WORKING))
        for number in range(chance.randint(1, 8)):
            piece = Part(text=f"{number}" * chance.randint(1, 200))
            made.append(piece)
            update = ArtifactUpdate(*IDS, Artifact("a", [piece]), append=number > 0)
            said = Message(MessageId(f"m{number}"), Role.AGENT, [Part(text="so far")])
            for seen in (whole, small):
                seen.apply(update)
                seen.apply(StatusUpdate(*IDS, TaskStatus(TaskState.WORKING, said)))
        if chance.random() < 0.5:
            small = small.copy()
        more = [*made, Part(text="more")] if chance.random() < 0.7 else made
        if chance.random() < 0.5:
            more = [Part(text="".join(str(part.text) for part in more))]
        task = Task(*IDS, TaskStatus(TaskState.COMPLETED), artifacts=[Artifact("a", more)])
        assert small.missing(task) == whole.missing(task)
        behind = Task(*IDS, WORKING, artifacts=[Artifact("a", made[:-1])])
        assert small.is_ahead_of(behind) == whole.is_ahead_of(behind)


def test_a_light_fold_of_a_large_task_holds_nothing_of_it() -> None:
    seen = ReplayFilter(is_light=True)
    history = [Message(MessageId("m"), Role.AGENT, [Part(text="x" * 1000)])]
    artifacts = [Artifact(f"{n}", [Part(text="x" * 1_000_000)]) for n in range(3)]
    seen.apply(Task(*IDS, WORKING, artifacts=artifacts, history=history))
    seen.apply(ArtifactUpdate(*IDS, Artifact("more", [Part(raw=b"x" * 1_000_000)])))
    task = seen.task()
    assert task is not None and task.history == []
    assert [one.parts for one in task.artifacts] == [[], [], [], []]
    assert seen.missing(Task(*IDS, WORKING, artifacts=artifacts, history=history)) == []
