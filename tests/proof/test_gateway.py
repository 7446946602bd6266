"""The proof of a gateway with a few kills, and what its checks find in a file that was tampered
with afterwards."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec
import pytest

from proof.crash.checker import Sent, Verdict
from proof.gateway import gateway
from proof.gateway.callers import Account, ExpectedTask
from proof.gateway.checks import Money, Prices, check_money, check_once
from proof.gateway.result import GatewayResult

WITHIN = 180.0
# Of its two kills one is the gateway's.
SEED = 12


class Ran(NamedTuple):
    result: GatewayResult
    folder: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    async def run(folder: Path, callers: int, pause: float) -> Ran:
        async with asyncio.timeout(WITHIN):
            result = await gateway.prove(2, SEED, folder=folder, callers=callers, pause=pause)
            return Ran(result, folder)

    # Little happens between two kills on a busy machine, and perhaps no call is under way at one:
    # then they come later, and more callers call.
    for callers, pause in ((1, 0.1), (2, 5.0), (4, 20.0), (8, 20.0)):
        done = asyncio.run(run(tmp_path_factory.mktemp("gateway"), callers, pause))
        if done.result.findings or has_enough(done.result):
            break
    return done


def has_enough(result: GatewayResult) -> bool:
    """Tell whether there was something to lose, to pay for and to go on with."""
    is_work = result.tasks > 10 and result.captures > 5 and result.streams > 0
    return is_work and result.unknown > 0


def test_a_killed_gateway_loses_nothing_and_charges_once(ran: Ran) -> None:
    result = ran.result
    assert result.findings == [] and result.kept, result
    assert result.kills == 2 and result.gateway_kills > 0 and result.flaps > 0
    assert has_enough(result), result


def money_after(ran: Ran, tmp_path: Path, tamper: Callable[[apsw.Connection], object]) -> Money:
    """Return what the books say once something was done to a copy of them."""
    path = tmp_path / "gateway.db"
    for file in ran.folder.glob("gateway.db*"):
        shutil.copy(file, tmp_path / file.name)
    connection = apsw.Connection(str(path))
    rows = connection.execute("SELECT DISTINCT agent, payee, price FROM errands")
    prices = {agent: Prices(payee, price) for agent, payee, price in rows}
    connection.execute("DROP TRIGGER entries_stay; DROP TRIGGER entries_last")
    tamper(connection)
    connection.close()
    return check_money(path, prices)


def test_books_that_nobody_touched_are_in_order(ran: Ran, tmp_path: Path) -> None:
    money = money_after(ran, tmp_path, lambda _: None)
    assert money.findings == [] and money.captures == ran.result.captures


def test_a_task_that_was_charged_twice_is_found(ran: Ran, tmp_path: Path) -> None:
    again = """
        INSERT INTO transfers SELECT number + 1000000, x'00', kind, task, reference, memo, at, hash
        FROM transfers WHERE kind = 'capture' LIMIT 1;
        INSERT INTO entries SELECT number + (1000000 << 3), account, kind, amount, held, balance,
        reserved FROM entries
        WHERE number >> 3 = (SELECT number FROM transfers WHERE kind = 'capture' LIMIT 1)"""
    money = money_after(ran, tmp_path, lambda file: file.execute(again))
    assert money.double_charges == 1 and money.sum > 0


def test_a_charge_for_what_was_not_completed_is_found(ran: Ran, tmp_path: Path) -> None:
    failed = (
        "UPDATE tasks SET state = 4 WHERE number = (SELECT min(task) FROM errands WHERE charged)"
    )
    assert money_after(ran, tmp_path, lambda file: file.execute(failed)).double_charges == 1


def test_a_completed_task_that_was_not_paid_for_is_found(ran: Ran, tmp_path: Path) -> None:
    unpaid = """DELETE FROM entries
        WHERE number >> 3 = (SELECT min(number) FROM transfers WHERE kind = 'capture')"""
    money = money_after(ran, tmp_path, lambda file: file.execute(unpaid))
    assert money.uncharged == 1 and money.double_charges == 0


def test_a_hold_that_outlives_its_task_is_found(ran: Ran, tmp_path: Path) -> None:
    held = "UPDATE errands SET held = 5 WHERE task = (SELECT min(task) FROM errands)"
    assert money_after(ran, tmp_path, lambda file: file.execute(held)).holds == 1


def test_a_message_for_which_an_agent_has_two_tasks_is_found(ran: Ran) -> None:
    verdict = Verdict()
    # Nobody is known to have sent any of what the agent has.
    count = check_once(ran.folder / "once.db", [], verdict)
    assert verdict.doubled == count > 0


@pytest.mark.parametrize(
    ("kind", "state", "text", "is_as_undisturbed"),
    [
        ("short", "TASK_STATE_COMPLETED", "said", True),
        ("short", "TASK_STATE_COMPLETED", "said said", False),
        ("short", "TASK_STATE_FAILED", "said", False),
        ("short", "TASK_STATE_CANCELED", "said", False),
        ("cancel", "TASK_STATE_CANCELED", "", True),
        ("cancel", "TASK_STATE_COMPLETED", "sa", False),
    ],
)
def test_an_end_is_held_against_that_of_an_undisturbed_run(
    kind: str, state: str, text: str, is_as_undisturbed: bool
) -> None:
    wanted = ExpectedTask(kind, Account("ada", ""), "a", "x", Sent("SendMessage", {}), "said")  # type: ignore[arg-type]
    assert (gateway.differs(wanted, state, text) == "") is is_as_undisturbed


def test_the_result_names_what_is_promised(ran: Ran) -> None:
    broken = {
        "lost": 1,
        "differing": 1,
        "gaps": 1,
        "double_charges": 1,
        "holds": 1,
        "doubled": 1,
        "repeated": 1,
    }
    rows = msgspec.structs.replace(ran.result, **broken).rows()
    assert Counter(row.kept for row in rows) == {False: len(broken)}
