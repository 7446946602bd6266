"""What of an agent's days counts, pure: for stores that do not sum in a query, and for the check of
those that do. A requester's day counts for a number of tasks at most: of more, each counts less, in
exact integers."""

from collections.abc import Container, Mapping

from dragoman.stores.interface.trust import UNIT, DayKey, SumWindow, TrustDay, TrustSums


def counted(
    days: Mapping[DayKey, TrustDay], payers: Container[str], window: SumWindow
) -> dict[str, TrustSums]:
    """Return what counts, by agent: days of requesters that paid, and of the local user."""
    found: dict[str, TrustSums] = {}
    cap = window.cap
    for (agent, requester, is_own, day), one in days.items():
        if is_own or (requester and requester not in payers):
            continue
        before = found.get(agent, TrustSums(0, 0, 0, 0, 0, 0, 0, 0, day))
        completed, failed, response_ms = _weighed(one, cap)
        is_recent, is_active = day > window.recent, day > window.active
        found[agent] = TrustSums(
            before.completed + completed,
            before.failed + failed,
            before.response_ms + response_ms,
            before.ratings + min(one.ratings, cap) * UNIT,
            before.rating_sum + one.rating_sum * UNIT * min(one.ratings, cap) // (one.ratings or 1),
            before.recent_completed + completed * is_recent,
            before.recent_failed + failed * is_recent,
            before.active + (completed + failed) * is_active,
            max(before.last_day, day),
        )
    return found


def _weighed(day: TrustDay, cap: int) -> tuple[int, int, int]:
    total = day.completed + day.failed
    if total <= cap:
        return day.completed * UNIT, day.failed * UNIT, day.response_ms
    completed = day.completed * UNIT * cap // total
    return completed, cap * UNIT - completed, day.response_ms * cap // total
