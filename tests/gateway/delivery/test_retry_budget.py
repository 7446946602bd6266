"""Second tries are a share of what an agent is asked, and a few where it is hardly asked."""

from harness.clock import Clock

from dragoman.gateway.delivery.retry_budget import RetryBudget, Window


def test_a_window_forgets_what_is_older_than_itself() -> None:
    time = Clock(1000.25)
    window = Window(time)
    window.add()
    time.now += 5
    window.add()
    assert window.total() == 2
    time.now += 5
    assert window.total() == 1
    time.now += 5
    assert window.total() == 0


def test_a_window_that_slept_long_is_empty_and_its_size_is_what_it_was() -> None:
    time = Clock(1000.25)
    window = Window(time)
    for _ in range(100):
        window.add()
        time.now += 0.01
    time.now += 1_000_000
    assert window.total() == 0
    window.add()
    assert window.total() == 1
    assert len(window._counts) == 10


def test_a_window_says_when_its_oldest_count_leaves() -> None:
    time = Clock(1000.25)
    window = Window(time)
    assert window.eases_in() == 0
    window.add()
    time.now += 3
    window.add()
    wait = window.eases_in()
    time.now += wait
    assert window.total() == 1


def test_an_agent_that_is_hardly_asked_gets_three_tries_in_ten_seconds() -> None:
    time = Clock(1000.25)
    budget = RetryBudget(time)
    budget.requested()
    assert [budget.may_retry() for _ in range(5)] == [True, True, True, False, False]
    time.now += budget.retry_in()
    assert budget.may_retry()


def test_a_refused_try_is_not_counted_as_one() -> None:
    time = Clock(1000.25)
    budget = RetryBudget(time)
    for _ in range(3):
        assert budget.may_retry()
    time.now += 5
    for _ in range(100):
        assert not budget.may_retry()
    time.now += 5
    assert [budget.may_retry() for _ in range(4)] == [True, True, True, False]


def test_a_dead_agent_that_is_asked_much_sees_a_tenth_more_and_no_storm() -> None:
    time = Clock(1000.25)
    budget = RetryBudget(time)
    asked = retried = 0
    # A minute at 200 a second, and each of them would try twice more.
    for _ in range(60 * 200):
        time.now += 1 / 200
        budget.requested()
        asked += 1
        retried += budget.may_retry()
        retried += budget.may_retry()
    assert 0.09 * asked < retried <= 0.1 * asked
