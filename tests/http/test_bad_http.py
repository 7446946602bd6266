"""Every row of the table of bad HTTP gets its refusal, its connection is closed, and nothing else
happens: no task, no words about our insides, and the next caller is served.
"""

import asyncio

import pytest
from harness.waiting import within

from tests.corpus import agent as corpus_agent
from tests.corpus.answer import INTERNALS
from tests.http.cases import Case, cases
from tests.http.wire import Place, call, guarding, is_problem, post

# As many at a time as a caller's pool would have.
_AT_ONCE = 8


async def _judge(place: Place, case: Case, *, is_known: bool) -> str | None:
    """Return what is wrong with the answer to a case, on a connection that has not read its head
    before or on one that knows the head of all good ones."""
    async with place.peer() as peer:
        if is_known:
            await peer.send(post(call("GetTask", {"id": "none"})))
            if (await peer.answer()).status != 200:
                return "the good request before it was refused"
        # Those that are refused early close while we still write.
        writing = asyncio.ensure_future(peer.send(case.data))
        try:
            answer = await peer.answer()
        except (EOFError, ConnectionError, TimeoutError, ValueError) as error:
            return f"no answer: {error!r}"
        finally:
            await within(writing)
        if answer.status not in case.statuses:
            return f"{answer.status}: {answer.body[:80]!r}"
        if not is_problem(answer):
            return f"no problem: {answer}"
        if INTERNALS.search(answer.body):
            return f"internals: {answer.body!r}"
        if rest := await peer.rest():
            return f"a second answer: {rest[:80]!r}"
    return None


@pytest.mark.parametrize("is_known", [False, True])
async def test_bad_http_is_refused_as_the_table_says_and_leaves_nothing_behind(
    is_known: bool,
) -> None:
    found = cases()
    wrong: list[str] = []
    async with guarding() as place:
        await place.echo()
        total, runs = await place.total(), corpus_agent.runs
        for start in range(0, len(found), _AT_ONCE):
            batch = found[start : start + _AT_ONCE]
            judging = (_judge(place, case, is_known=is_known) for case in batch)
            problems = await asyncio.gather(*judging)
            wrong += [f"{c.name}: {p}" for c, p in zip(batch, problems, strict=True) if p]
            if await place.total() != total:
                wrong.append(f"a task was created by one of {[case.name for case in batch]}")
                total = await place.total()
        assert corpus_agent.runs == runs
        await place.echo()
    assert len(found) >= 200
    assert not wrong, "\n".join([f"{len(wrong)} of {len(found)}", *wrong])


async def test_what_is_refused_whole_is_refused_one_byte_at_a_time() -> None:
    small = [case for case in cases() if len(case.data) < 400][::7]
    wrong: list[str] = []
    async with guarding() as place:
        for case in small:
            async with place.peer() as peer:
                for number in range(len(case.data)):
                    await peer.send(case.data[number : number + 1])
                answer = await peer.answer()
                # Of a method cut in two nobody knows that it is one.
                if answer.status not in case.statuses | {400} or await peer.rest():
                    wrong.append(f"{case.name}: {answer.status}")
    assert len(small) > 20
    assert not wrong, "\n".join(wrong)
