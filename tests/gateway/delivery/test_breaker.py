"""An agent that keeps failing is left alone, tried by one call, and trusted again slowly."""

import pytest
from harness.clock import Clock

from dragoman.gateway.delivery.breaker import Breaker


@pytest.fixture
def time() -> Clock:
    return Clock()


@pytest.fixture
def breaker(time: Clock) -> Breaker:
    return Breaker(time)


def trip(breaker: Breaker) -> None:
    """Open a closed circuit."""
    for _ in range(5):
        breaker.failed(is_connection=True)
    assert breaker.state == "open"


def test_it_opens_at_half_of_twenty_outcomes(breaker: Breaker) -> None:
    for _ in range(10):
        breaker.succeeded()
    for _ in range(9):
        breaker.failed()
    assert breaker.state == "closed"
    breaker.failed()
    assert breaker.state == "open"
    assert breaker.admit() == pytest.approx(5)


def test_it_stays_closed_below_half_however_many_fail(breaker: Breaker) -> None:
    for _ in range(1000):
        breaker.succeeded()
        breaker.succeeded()
        breaker.failed(is_connection=True)
    assert breaker.state == "closed" and breaker.admit() == 0


def test_fewer_than_twenty_outcomes_do_not_open_it(breaker: Breaker) -> None:
    for _ in range(19):
        breaker.failed()
    assert breaker.state == "closed"


def test_failures_longer_ago_than_ten_seconds_do_not_count(time: Clock, breaker: Breaker) -> None:
    for _ in range(19):
        breaker.failed()
    time.now += 10
    breaker.failed()
    assert breaker.state == "closed"


def test_five_connections_lost_in_a_row_open_it_however_far_apart(
    time: Clock, breaker: Breaker
) -> None:
    for _ in range(4):
        breaker.failed(is_connection=True)
        time.now += 60
    assert breaker.state == "closed"
    breaker.failed(is_connection=True)
    assert breaker.state == "open"


def test_a_success_between_lost_connections_begins_the_row_anew(breaker: Breaker) -> None:
    for _ in range(3):
        for _ in range(4):
            breaker.failed(is_connection=True)
        breaker.succeeded()
    assert breaker.state == "closed"


def test_half_open_lets_one_through_and_its_success_closes(time: Clock, breaker: Breaker) -> None:
    trip(breaker)
    assert breaker.admit() == 5
    time.now += 5
    assert breaker.state == "half-open"
    assert breaker.admit() == 0
    assert all(breaker.admit() > 0 for _ in range(100))
    breaker.succeeded(breaker.era)
    assert breaker.state == "closed"
    assert [breaker.admit() for _ in range(100)] == [0] * 100


def test_a_failed_try_opens_for_twice_as_long_up_to_a_minute(time: Clock, breaker: Breaker) -> None:
    trip(breaker)
    waits: list[float] = []
    for _ in range(6):
        waits.append(breaker.admit())
        time.now += waits[-1]
        assert breaker.admit() == 0
        breaker.failed(breaker.era)
        assert breaker.state == "open"
    assert waits == [5, 10, 20, 40, 60, 60]


def test_old_failures_do_not_open_a_circuit_that_just_closed(time: Clock, breaker: Breaker) -> None:
    for _ in range(20):
        breaker.failed()
    time.now += 5
    assert breaker.admit() == 0
    breaker.succeeded(breaker.era)
    breaker.failed()
    assert breaker.state == "closed"


def test_a_late_outcome_of_a_call_from_before_neither_closes_nor_prolongs(
    time: Clock, breaker: Breaker
) -> None:
    before = breaker.era
    trip(breaker)
    breaker.succeeded(before)
    breaker.succeeded()
    breaker.failed()
    assert breaker.admit() == 5
    time.now += 5
    assert breaker.admit() == 0
    breaker.failed(before)
    breaker.succeeded(before)
    breaker.abandoned(before)
    assert breaker.state == "half-open" and breaker.admit() > 0
    breaker.succeeded(breaker.era)
    breaker.failed(before)
    assert breaker.snapshot().failures == 0


def test_a_try_that_was_given_up_leaves_its_place_to_another(time: Clock, breaker: Breaker) -> None:
    trip(breaker)
    time.now += 5
    assert breaker.admit() == 0
    breaker.abandoned(breaker.era)
    assert breaker.admit() == 0


def test_a_try_that_is_never_heard_of_again_loses_its_place(time: Clock, breaker: Breaker) -> None:
    trip(breaker)
    time.now += 5
    assert breaker.admit() == 0
    time.now += 59
    assert breaker.admit() > 0
    time.now += 1
    assert breaker.admit() == 0


@pytest.mark.parametrize("per_second", [1, 10, 100])
def test_an_agent_that_flaps_is_ejected_within_30_s_and_called_less_and_less(
    time: Clock, breaker: Breaker, per_second: int
) -> None:
    refused_from = 0.0
    reached: list[int] = []
    for minute in range(5):
        reached.append(0)
        for tick in range(60 * per_second):
            time.now = 1000 + 60 * minute + tick / per_second
            if breaker.admit():
                refused_from = refused_from or time.now
                continue
            is_up = (time.now - 1000) // 5 % 2 == 0
            reached[-1] += not is_up
            if is_up:
                breaker.succeeded(breaker.era)
            else:
                breaker.failed(breaker.era, is_connection=True)
    assert 0 < refused_from - 1000 <= 30
    assert reached[-1] < reached[0]


def test_an_agent_that_was_well_for_a_minute_is_forgiven(time: Clock, breaker: Breaker) -> None:
    for expected in (5, 10, 20):
        trip(breaker)
        assert breaker.admit() == expected
        time.now += expected
        assert breaker.admit() == 0
        breaker.succeeded(breaker.era)
        time.now += 59
    time.now += 1
    trip(breaker)
    assert breaker.admit() == 5


def test_operators_see_how_it_stands(time: Clock, breaker: Breaker) -> None:
    breaker.succeeded()
    breaker.failed()
    seen = breaker.snapshot()
    assert (seen.state, seen.outcomes, seen.failures, seen.opened) == ("closed", 2, 1, 0)
    trip(breaker)
    time.now += 2
    seen = breaker.snapshot()
    assert (seen.state, seen.opened, seen.retry_in) == ("open", 1, 3)


def test_what_another_process_found_is_adopted(breaker: Breaker, time: Clock) -> None:
    breaker.adopt(20.0, 3)
    assert breaker.state == "open" and breaker.opened == 3
    assert breaker.admit() == pytest.approx(20)
    # The same opening, told once more, and one that is over by now.
    era = breaker.era
    breaker.adopt(20.2, 3)
    breaker.adopt(0.0, 3)
    assert breaker.era == era and breaker.retry_in == pytest.approx(20)
    breaker.adopt(0.0, 0)
    assert breaker.state == "closed" and not breaker.admit()


def test_a_trial_that_fails_here_opens_for_longer_than_elsewhere(time: Clock) -> None:
    told: list[int] = []
    breaker = Breaker(time, changed=lambda one: told.append(one.opened))
    breaker.adopt(5.0, 2)
    assert told == [], "what is adopted is known elsewhere"
    time.now += 6
    assert not breaker.admit()
    breaker.failed(breaker.era)
    assert breaker.retry_in == pytest.approx(20) and told == [3]
    time.now += 21
    assert not breaker.admit()
    breaker.succeeded(breaker.era)
    assert told == [3, 0]
