"""Who is there: heartbeats, probes and what happens to tasks, judged by a clock of our own."""

from msgspec.structs import replace

from dragoman.gateway.registry.health_history import APART, MISSES, PROBES, HealthHistory
from dragoman.gateway.registry.registered import Registered, Status

MINUTE = 60_000


def agent(status: Status = "online", beat_at: int = 0) -> Registered:
    return Registered(
        id="a", name="a", title="a", url="https://a.example.com/", status=status, beat_at=beat_at
    )


def still() -> float:
    return 0.5


class Flapping:
    """An agent that is up for five seconds and down for five, tasks and probes coming."""

    def __init__(self) -> None:
        self.history = HealthHistory(60)
        self.agent = agent()
        self.now = 0
        self.probe_at = 0

    @property
    def is_up(self) -> bool:
        return self.now % 10_000 < 5_000

    def stand(self, status: Status) -> None:
        self.agent = replace(self.agent, status=status)

    def second(self, *, is_up: bool | None = None) -> None:
        """Let a second pass, with a task in it and a probe if one is due."""
        up = self.is_up if is_up is None else is_up
        if up:
            self.stand(self.history.saw(self.agent))
        else:
            self.stand(self.history.missed(self.agent, self.now))
        if self.now >= self.probe_at:
            self.stand(self.history.probed(self.agent, self.now, is_there=up))
            self.probe_at = self.history.next_at(self.agent, self.now, still)
        self.now += 1000


def test_a_flapping_agent_is_ejected_within_half_a_minute_and_stays_out() -> None:
    flapping = Flapping()
    while flapping.now < 30_000 and not flapping.history.is_ejected("a"):
        flapping.second()
    assert flapping.agent.status == "offline" and flapping.now <= 30_000
    for _ in range(600):
        flapping.second()
        assert flapping.agent.status == "offline"


def test_a_slow_caller_finds_a_flapping_agent_out_too() -> None:
    history, now = HealthHistory(60), 0
    seen = agent()
    # One task every seven seconds, of which every other one fails.
    while seen.status != "offline":
        now += 7_000
        is_up = now // 7_000 % 2
        status = history.saw(seen) if is_up else history.missed(seen, now)
        seen = replace(seen, status=status)
        assert now <= 60_000
    assert history.is_ejected("a")


def test_an_ejected_agent_is_readmitted_by_probes_and_by_nothing_else() -> None:
    flapping = Flapping()
    while not flapping.history.is_ejected("a"):
        flapping.second()
    for _ in range(1000):
        assert flapping.history.saw(flapping.agent) == "offline"
        assert flapping.history.beat(flapping.agent, "online") == "offline"
    began, probes = flapping.now, 0
    while flapping.agent.status == "offline":
        flapping.second(is_up=True)
        probes += 1
        assert probes < 100
    # In a row, and further apart than it stays up.
    assert flapping.now - began >= (PROBES - 1) * APART


def test_who_is_ejected_again_soon_waits_longer() -> None:
    history, seen = HealthHistory(60), agent("offline")
    needed: list[int] = []
    for round in range(3):
        history.eject("a", round * 1000)
        count = 1
        while history.probed(seen, round * 1000, is_there=True) != "online":
            count += 1
        needed.append(count)
    assert needed == [3, 6, 12]
    history.eject("a", 2000 + 600_000)
    assert [history.probed(seen, 0, is_there=True) for _ in range(3)][-1] == "online"


def test_a_single_miss_is_no_reason_to_send_anyone_away() -> None:
    history = HealthHistory(60)
    assert history.missed(agent(), 0) == "degraded"
    assert history.saw(agent("degraded")) == "online"
    # Misses that are far apart are not flapping.
    for count in range(1, 10):
        assert history.missed(agent(), count * MINUTE) == "degraded"


def test_an_agent_that_answers_no_probe_is_offline_after_a_few() -> None:
    history, seen, now = HealthHistory(60), agent(), 0
    statuses: list[Status] = []
    for _ in range(MISSES):
        status = history.probed(seen, now, is_there=False)
        statuses.append(status)
        seen = replace(seen, status=status)
        now = history.next_at(seen, now, still)
    assert statuses == ["degraded", "degraded", "offline"] and now <= 30_000


def test_probes_of_one_that_is_away_grow_rarer() -> None:
    history, seen, now = HealthHistory(60), agent("offline"), 0
    pauses: list[int] = []
    for _ in range(6):
        history.probed(seen, now, is_there=False)
        at = history.next_at(seen, now, still)
        pauses.append(at - now)
        now = at
    assert pauses == [10_000, 20_000, 40_000, 60_000, 60_000, 60_000]
    # And often again once it is found.
    assert history.probed(seen, now, is_there=True) == "online"


def test_an_agent_that_was_never_there_is_online_when_first_found() -> None:
    assert HealthHistory(60).probed(agent("offline"), 0, is_there=True) == "online"


def test_a_heartbeat_that_says_nothing_means_online() -> None:
    history = HealthHistory(60)
    assert history.beat(agent("offline"), None) == "online"
    assert history.beat(agent("online"), "degraded") == "degraded"
    # It is its own word, and a task that arrives does not change it.
    assert history.saw(agent("degraded", beat_at=1)) == "degraded"


def test_silence_degrades_after_one_interval_and_ends_after_three() -> None:
    history, seen = HealthHistory(60), agent(beat_at=1000)
    assert history.silent(seen, 1000 + MINUTE) == "online"
    assert history.silent(seen, 1001 + MINUTE) == "degraded"
    assert history.silent(seen, 1000 + 3 * MINUTE) == "degraded"
    assert history.silent(seen, 1001 + 3 * MINUTE) == "offline"


def test_silence_is_looked_at_when_it_begins_to_count() -> None:
    history, seen = HealthHistory(60), agent(beat_at=1000)
    assert not history.is_probed(seen)
    assert history.next_at(seen, 1000, still) == 1001 + MINUTE
    assert history.next_at(seen, 1001 + MINUTE, still) == 1001 + 3 * MINUTE


def test_probes_are_spread_around_their_interval() -> None:
    history = HealthHistory(60)
    assert history.next_at(agent(), 0, lambda: 0.0) == 48_000
    assert history.next_at(agent(), 0, lambda: 1.0) == 72_000


def test_who_is_offline_is_back_when_enough_probes_can_have_found_it() -> None:
    history, seen = HealthHistory(60), agent("offline")
    # One look will do for one that was never seen.
    assert history.back_at(seen, 0, 4_000) == 4_000 and history.back_at(seen, 0, None) == 0
    history.eject("a", 0)
    assert history.back_at(seen, 0, 4_000) == 4_000 + (PROBES - 1) * APART
    history.probed(seen, 4_000, is_there=True)
    assert history.back_at(seen, 4_000, 9_000) == 9_000 + APART
    # Of one that speaks for itself, when it should speak again.
    assert HealthHistory(60).back_at(agent("offline", beat_at=1), 500, None) == 500 + MINUTE
