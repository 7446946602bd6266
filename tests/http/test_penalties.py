"""How long an address waits whose connections had to be ended."""

import tracemalloc

from dragoman.http.grpc.frames import ENHANCE_YOUR_CALM, PROTOCOL_ERROR
from dragoman.http.grpc.penalties import LONGEST, Penalties


class Seconds:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_few_faults_cost_nothing_and_more_of_them_time() -> None:
    clock = Seconds()
    penalties = Penalties(clock)
    for _ in range(10):
        penalties.add("a", PROTOCOL_ERROR)
    assert penalties.wait("a") == 0.0
    penalties.add("a", PROTOCOL_ERROR)
    assert penalties.wait("a") == 0.5
    assert penalties.wait("b") == 0.0
    clock.now += 0.5
    assert penalties.wait("a") == 0.0


def test_floods_cost_more_and_never_more_than_the_longest_wait() -> None:
    clock = Seconds()
    penalties = Penalties(clock)
    for _ in range(3):
        penalties.add("a", ENHANCE_YOUR_CALM)
    assert penalties.wait("a") == 2.5
    for _ in range(100):
        penalties.add("a", ENHANCE_YOUR_CALM)
    assert penalties.wait("a") == LONGEST
    clock.now += LONGEST
    assert penalties.wait("a") == 0.0


def test_what_is_remembered_has_a_bound() -> None:
    penalties = Penalties(Seconds())
    tracemalloc.start()
    try:
        for number in range(20_000):
            penalties.add(f"one-{number}", ENHANCE_YOUR_CALM)
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
    for _ in range(3):
        penalties.add("last", ENHANCE_YOUR_CALM)
    assert penalties.wait("last") > 0
