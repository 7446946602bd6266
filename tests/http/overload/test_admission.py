"""Overload: who may begin, who is refused, by a loop whose time the test makes."""

import asyncio
import copy
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.http.admission import (
    AT_ONCE,
    LATE,
    LEAST,
    LONG,
    MOST,
    OVER_AFTER,
    SAMPLE,
    SAMPLES_UNDER_WAY,
    SHORT,
    SLOW,
    SLOW_FOR,
    TURNS,
    Admission,
    Ticket,
)


class Time:
    """A loop that does as much work as it is told to, turn by turn. A request takes as many turns
    as a short task does, with a part of its work in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.work = 0.0
        self.admission = Admission(lambda: self.now, lambda: self.work)
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._soon: list[Callable[[], None]] = []
        # What is under way: its ticket, the turns it still takes, and its work in each.
        self.under_way: list[tuple[Ticket, int, float]] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._later.append((self.now + seconds, callback))

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self._soon.append(lambda: callback(*args))

    @property
    def is_watched(self) -> bool:
        return bool(self._later)

    def turn(self, arrivals: int = 0, cost: float = 0.001, who: object = "a") -> int:
        """Let requests arrive, each of which costs so much; return how many began."""
        return self.crowd({who: arrivals}, cost)[who]

    def crowd(self, arrivals: dict[object, int], cost: float = 0.001) -> dict[object, int]:
        began: dict[object, int] = dict.fromkeys(arrivals, 0)
        for who, count in arrivals.items():
            for _ in range(count):
                if ticket := self.admission.enter(who):
                    self.under_way.append((ticket, TURNS, cost / TURNS))
                    began[who] += 1
        self.pass_(sum(part for _, _, part in self.under_way))
        under_way, self.under_way = self.under_way, []
        for ticket, left, part in under_way:
            if left > 1:
                self.under_way.append((ticket, left - 1, part))
            else:
                self.admission.end(ticket)
        return began

    def callers(self, count: int, seconds: float, *, rest: float = 0.0) -> None:
        """Let so many ask again whenever they are answered, or refused."""
        ends = self.now + seconds
        while self.now < ends:
            self.turn(max(0, count - len(self.under_way)))
            if rest or not self.under_way:
                self.idle(rest or 0.002)

    def pass_(self, seconds: float, beside: float = 0.0) -> None:
        """Let a turn go by."""
        self.now += seconds + beside
        self.work += seconds
        soon, self._soon = self._soon, []
        due = [one for one in self._later if one[0] <= self.now]
        self._later = [one for one in self._later if one[0] > self.now]
        for callback in soon:
            callback()
        for _, callback in due:
            callback()

    def idle(self, seconds: float) -> None:
        """Nothing to do but what is due."""
        ends = self.now + seconds
        while self._soon or (self._later and min(self._later)[0] <= ends):
            waits = 0.0 if self._soon else min(self._later)[0] - self.now
            self.pass_(0.0, beside=max(0.0, waits))
        self.now = max(self.now, ends)

    def finish(self) -> None:
        """Do all that is under way."""
        while self.under_way:
            self.turn()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def overload(loop: Time, seconds: float = 10.0) -> int:
    """Five times what there is time for; return how many began."""
    ends, before, began = loop.now + seconds, loop.now, 0
    while loop.now < ends:
        # A request takes a millisecond, so that a thousand a second can be answered.
        came = int((loop.now - before) * 5000)
        before = loop.now
        began += loop.turn(came)
        if not loop.under_way:
            loop.idle(0.002)
    return began


def filled(loop: Time) -> list[Ticket]:
    """Let as many begin as may, which then wait; return their tickets."""
    began: list[Ticket] = []
    while ticket := loop.admission.enter("a"):
        began.append(ticket)
    return began


def test_what_there_is_time_for_is_never_refused(loop: Time) -> None:
    for _ in range(500):
        assert loop.turn(8) == 8
        loop.idle(0.001)
    assert loop.admission.refused == 0 and not loop.admission.is_overloaded


def test_a_crowd_that_comes_once_is_let_in(loop: Time) -> None:
    assert loop.turn(MOST) == MOST
    loop.finish()
    loop.idle(OVER_AFTER + 2 * SAMPLE)
    assert loop.turn(MOST) == MOST
    assert loop.turn(MOST + 1) <= MOST


def test_requests_that_are_answered_at_once_are_no_crowd_however_many_they_are(loop: Time) -> None:
    for _ in range(2 * MOST):
        ticket = loop.admission.enter("a")
        assert ticket is not None
        loop.admission.end(ticket)


def test_in_overload_what_begins_is_answered_soon_and_the_time_is_used(loop: Time) -> None:
    overload(loop, 5)
    began_at = loop.now
    began = overload(loop)
    assert loop.admission.is_overloaded
    assert began / (loop.now - began_at) > 800, "who began had most of the time there is"
    # A thousand are answered in a second.
    assert 0.8 * SHORT * 1000 <= loop.admission.most <= 1.2 * LONG * 1000


def test_where_each_turn_is_short_and_requests_take_many_there_is_an_overload(loop: Time) -> None:
    loop.callers(int(1.5 * SLOW * 1000), 4 * SLOW_FOR)
    assert loop.admission.is_overloaded and loop.admission.refused > 0


@pytest.mark.parametrize(
    ("callers", "rest"), [(int(0.7 * SLOW * 1000), 0.0), (LEAST - 1, 0.0), (LEAST - 1, 0.1)]
)
def test_callers_who_are_answered_soon_are_no_overload(
    loop: Time, callers: int, rest: float
) -> None:
    loop.callers(callers, 20 * SLOW_FOR, rest=rest)
    assert not loop.admission.is_overloaded and loop.admission.refused == 0


def test_few_requests_that_block_the_loop_are_no_overload(loop: Time) -> None:
    for _ in range(100):
        loop.turn(1, cost=2 * SLOW)
    assert not loop.admission.is_overloaded


def test_requests_that_wait_for_something_else_are_no_overload(loop: Time) -> None:
    """However busy the loop is with what is short."""
    waiting: deque[tuple[float, Ticket]] = deque()
    for _ in range(1000):
        for _ in range(10):
            ticket = loop.admission.enter("a")
            assert ticket is not None
            waiting.append((loop.now + 10 * SLOW, ticket))
        loop.pass_(0.0048, beside=0.0002)
        while waiting[0][0] < loop.now:
            loop.admission.end(waiting.popleft()[1])
    assert not loop.admission.is_overloaded and loop.admission.refused == 0


def test_what_costs_nothing_does_not_hide_an_overload(loop: Time) -> None:
    ends = loop.now + 4 * SLOW_FOR
    while loop.now < ends:
        loop.turn(max(0, int(1.5 * SLOW * 1000) - len(loop.under_way)))
        if quick := loop.admission.enter("b"):
            loop.admission.end(quick)
    assert loop.admission.is_overloaded
    most = loop.admission.most
    for _ in range(50):
        if quick := loop.admission.enter("b"):
            loop.admission.end(quick)
        loop.turn(200)
    assert loop.admission.most <= max(most, 1.2 * LONG * 1000)


def test_in_overload_one_begins_when_one_is_answered(loop: Time) -> None:
    overload(loop)
    loop.finish()
    admission = loop.admission
    began = filled(loop)
    # Who is the only one has no share beyond what all may have.
    assert admission.most <= admission.under_way < admission.most + 1
    assert not admission.enter("a") and admission.turns_away("a")
    admission.end(began.pop())
    assert not admission.turns_away("a") and admission.enter("a")
    assert not admission.enter("a")


def test_who_waits_for_long_is_not_counted_as_under_way(loop: Time) -> None:
    overload(loop)
    loop.finish()
    loop.pass_(SAMPLE)
    admission = loop.admission
    began = filled(loop)
    # As long as it may still be our work.
    for _ in range(SAMPLES_UNDER_WAY - 1):
        loop.pass_(SAMPLE)
        assert not admission.enter("a")
    loop.pass_(SAMPLE)
    assert admission.under_way == 0 and admission.enter("a")
    for ticket in began:
        admission.end(ticket)
    assert admission.under_way == 1, "nobody is counted twice"
    assert set(admission._of) == {"a"}


def test_who_has_few_under_way_begins_beside_one_whose_requests_wait(loop: Time) -> None:
    overload(loop)
    loop.finish()
    for _ in range(50):
        filled(loop)
        for _ in range(2):
            ticket = loop.admission.enter("quiet")
            assert ticket is not None
            loop.under_way.append((ticket, TURNS, 0.0001))
        for _ in range(4):
            loop.turn()
        loop.pass_(SAMPLE / 4)


def test_so_many_are_refused_at_once_and_no_more(loop: Time) -> None:
    overload(loop)
    loop.finish()
    admission = loop.admission
    loop.pass_(SAMPLE)
    filled(loop)
    at_once = 0
    for _ in range(2 * AT_ONCE * int(admission.most)):
        assert admission.turns_away("a")
        at_once += admission.refused < admission.at_once
    assert 0.8 < at_once / (AT_ONCE * admission.most) < 1.1
    loop.pass_(SAMPLE)
    assert admission.turns_away("a") and admission.refused < admission.at_once


def test_as_many_are_refused_at_once_as_there_are_connections_that_were_refused(
    loop: Time,
) -> None:
    overload(loop)
    loop.finish()
    admission = loop.admission
    loop.pass_(SAMPLE)
    filled(loop)
    count = admission.refused_connections = 4 * AT_ONCE * int(admission.most)
    loop.pass_(SAMPLE)
    assert admission.at_once == admission.refused + count


def test_some_are_let_in_however_slow_they_are(loop: Time) -> None:
    overload(loop)
    for _ in range(50):
        loop.finish()
        loop.idle(SAMPLE)
        assert loop.turn(100, cost=0.5) >= LEAST


def test_slow_things_are_no_overload(loop: Time) -> None:
    for _ in range(10):
        assert loop.turn(1, cost=20 * LATE) == 1
        loop.finish()
        loop.idle(0.1)
        assert loop.turn(100, cost=0.0001) == 100
        loop.finish()
        loop.idle(0.1)
    for _ in range(15):
        assert loop.turn(1, cost=4 * LATE) == 1
        loop.finish()
    assert loop.turn(100) == 100 and not loop.admission.is_overloaded


def test_time_that_others_had_the_processor_is_not_ours(loop: Time) -> None:
    for _ in range(50):
        for _ in range(20):
            assert loop.admission.enter("a")
        loop.pass_(0.001, beside=5 * LATE)
    for _ in range(5):
        for _ in range(20):
            loop.admission.enter("a")
        loop.pass_(0.001, beside=20 * LATE)
    assert loop.admission.is_overloaded, "but a loop that stands still takes no more"


def test_crowds_with_rest_between_them_are_no_overload(loop: Time) -> None:
    for _ in range(50):
        assert loop.turn(200) == 200
        loop.finish()
        loop.idle(2 * SAMPLE)
    assert not loop.admission.is_overloaded
    for _ in range(5):
        loop.turn(200)
        loop.finish()
    assert loop.admission.is_overloaded


def test_overload_ends_when_the_crowd_does(loop: Time) -> None:
    overload(loop)
    assert loop.admission.most < MOST / 4
    loop.idle(OVER_AFTER + 0.1)
    assert not loop.admission.is_overloaded
    assert loop.turn(500, cost=0.0001) == 500


def test_an_idle_loop_is_left_alone(loop: Time) -> None:
    overload(loop)
    assert loop.is_watched
    loop.idle(OVER_AFTER + 1)
    assert not loop.is_watched


def test_who_asks_most_gives_way_first(loop: Time) -> None:
    began: dict[object, int] = {"loud": 0, "quiet": 0, "third": 0}
    asked = dict.fromkeys(began, 0)
    overload(loop)
    for turn in range(300):
        crowd: dict[object, int] = {"loud": 300, "quiet": 1, "third": 1}
        found = loop.crowd(crowd)
        if turn >= 50:
            for who, count in found.items():
                began[who] += count
                asked[who] += crowd[who]
    assert began["quiet"] == asked["quiet"] and began["third"] == asked["third"]
    assert began["loud"] < asked["loud"] / 4


def test_connections_of_one_principal_count_together(loop: Time) -> None:
    for number in range(100):
        loop.admission.identify(number, "loud")
    loop.admission.identify("x", "quiet")
    quiet = 0
    overload(loop)
    for turn in range(150):
        found = loop.crowd({**dict.fromkeys(range(100), 5), "x": 1})
        quiet += found["x"] if turn >= 50 else 0
    assert quiet == 100
    for number in range(100):
        loop.admission.forget(number)
    assert list(loop.admission._callers) == ["x"]


def test_what_only_reads_is_preferred(loop: Time) -> None:
    overload(loop)
    filled(loop)
    assert not loop.admission.enter("a")
    assert loop.admission.enter("a", is_preferred=True)


def test_in_overload_what_waited_too_long_does_not_begin(loop: Time) -> None:
    assert loop.admission.enter("a", came_at=loop.now - 5)
    overload(loop)
    loop.finish()
    assert not loop.admission.enter("a", came_at=loop.now - 1)
    assert loop.admission.enter("a", came_at=loop.now)


def test_who_is_turned_away_at_a_glance_would_not_have_been_let_in(loop: Time) -> None:
    overload(loop)
    admission = loop.admission
    seen: set[bool] = set()
    began: list[Ticket] = []
    for _ in range(20):
        for number in range(800):
            # One asks most, and many ask once.
            who = "a" if number % 2 else number
            at_a_glance = copy.copy(admission).turns_away(who)
            ticket = admission.enter(who)
            assert (ticket is None) is at_a_glance
            if ticket is not None:
                began.append(ticket)
            seen.add(at_a_glance)
        loop.pass_(SAMPLE / 2)
        while began:
            admission.end(began.pop())
    assert seen == {True, False}
    refused = admission.refused
    while not admission.turns_away("a"):
        assert admission.enter("a")
    assert admission.refused == refused + 1, "it is counted"
    # It is what goes on with the overload.
    loop.idle(OVER_AFTER - SAMPLE)
    while not admission.turns_away("a"):
        assert admission.enter("a")
    loop.idle(OVER_AFTER)
    assert admission.is_overloaded
    loop.idle(OVER_AFTER + SAMPLE)
    assert not admission.is_overloaded
