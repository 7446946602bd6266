"""What has to be true of a gateway's file, and of those of the agents behind it, after a run.

Like the checker of tasks it reads the files itself, with none of the code that wrote them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from proof.crash.checker import Stored, StoreFile, Verdict, check_steps, reading
from proof.gateway.callers import ExpectedTask
from proof.results import Violations

_COMPLETED = "TASK_STATE_COMPLETED"
# Where a task was sent, as its log has it.
_SENT = b'{"forwarded"'
# How the agent begins what names the results of its steps.
_NAMES_STEPS = b'"text":"walk '


class Prices(msgspec.Struct, frozen=True):
    """What an agent costs, in micro-credits, and who earns it."""

    owner: str
    price: int


class Money(Violations):
    """What the books say."""

    captures: int = 0
    # Tasks that were charged more than once, or although they were not completed.
    double_charges: int = 0
    # Completed tasks that were not charged, or not what was agreed.
    uncharged: int = 0
    # What is left of it all, where there should be nothing.
    sum: int = 0
    holds: int = 0


def check_money(path: Path, prices: Mapping[str, Prices]) -> Money:
    """Hold the books against how the tasks ended; prices are by the agents' ids."""
    money = Money()
    with reading(path) as file:
        states = {task.number: task for task in file.tasks()}
        charges = _charges(file)
        errands = file.rows("SELECT task, agent, requester, held, ended_at FROM errands")
        known: set[int] = set()
        for number, agent, requester, held, ended_at in errands:
            known.add(number)
            task = states.get(number)
            if task is None:
                money.add("uncharged", f"the errand of task {number} has no task")
                continue
            if held or not ended_at:
                money.add("holds", f"task {task.id} is {task.state} and has {held} reserved")
            _check_charge(money, task, prices.get(agent), requester, charges.pop(number, []))
        for number in states.keys() - known:
            money.add("uncharged", f"task {states[number].id} is no errand")
        for number in charges:
            money.add("double_charges", f"task {number} is no errand, and was charged")
        money.captures = _one(file, "SELECT count(*) FROM transfers WHERE kind = 'capture'")
        _check_sums(file, money)
    return money


def _check_charge(
    money: Money, task: Stored, prices: Prices | None, requester: str, charged: Sequence[int]
) -> None:
    price = 0
    if prices is not None and task.state == _COMPLETED and requester != prices.owner:
        price = prices.price
    if len(charged) > 1 or sum(charged) > price:
        fact = f"task {task.id} is {task.state}, costs {price} and was charged {list(charged)}"
        money.add("double_charges", fact)
    elif sum(charged) < price:
        money.add("uncharged", f"task {task.id} costs {price} and was charged {sum(charged)}")


def _charges(file: StoreFile) -> dict[int, list[int]]:
    """Return what was taken for each task, one by one."""
    found: dict[int, list[int]] = {}
    rows = file.rows(
        "SELECT t.task, -e.amount FROM entries e JOIN transfers t ON t.number = e.number >> 3 "
        "WHERE t.task != 0 AND e.amount < 0"
    )
    for task, amount in rows:
        found.setdefault(task, []).append(amount)
    return found


def _check_sums(file: StoreFile, money: Money) -> None:
    """What was given is what was taken: in all, in each transfer, and in each account."""
    money.sum = abs(_one(file, "SELECT coalesce(sum(amount), 0) FROM entries"))
    money.sum += abs(_one(file, "SELECT sum(balance) FROM accounts"))
    for transfer, amount in file.rows(
        "SELECT number >> 3, sum(amount) FROM entries GROUP BY 1 HAVING sum(amount) != 0"
    ):
        money.add("sum", f"transfer {transfer} is off by {amount}")
    for owner, balance, held, amount, reserved in file.rows(
        "SELECT owner, a.balance, a.held, coalesce(sum(e.amount), 0), coalesce(sum(e.held), 0) "
        "FROM accounts a LEFT JOIN entries e ON e.account = a.number GROUP BY a.number "
        "HAVING a.balance != coalesce(sum(e.amount), 0) OR a.held != coalesce(sum(e.held), 0)"
    ):
        fact = f"{owner} has {balance} and {held} reserved, by the entries {amount} and {reserved}"
        money.add("sum", fact)
    for owner, held in file.rows("SELECT owner, held FROM accounts WHERE held != 0"):
        money.add("holds", f"{owner} has {held} reserved although everything has ended")


def _one(file: StoreFile, sql: str) -> int:
    ((value,),) = file.rows(sql)
    return value


def check_once(path: Path, wanted_tasks: Sequence[ExpectedTask], verdict: Verdict) -> int:
    """Count the tasks an agent has for what it was told, and tell where there are too many: one for
    each that was wanted. Returns how many there are."""
    meant = Counter(wanted.text for wanted in wanted_tasks)
    found: Counter[str] = Counter()
    with reading(path) as file:
        for task in file.tasks():
            said = msgspec.json.decode(task.events[0])["task"]["history"][0]
            found["".join(part.get("text", "") for part in said["parts"])] += 1
    for text, count in found.items():
        if count > meant[text]:
            fact = f"the agent has {count} tasks for {text!r}, which {meant[text]} callers sent"
            verdict.add("doubled", fact)
    return found.total()


def count_runs(path: Path) -> tuple[int, int]:
    """Return how many messages an agent's code ran on, and how often in all."""
    if not path.exists():
        return 0, 0
    runs = Counter(line.split("\t")[1] for line in path.read_text().splitlines())
    return len(runs), runs.total()


def count_moves(path: Path) -> int:
    """Return how often a gateway gave a task to another address than before."""
    moves = 0
    with reading(path) as file:
        for task in file.tasks():
            sent = [msgspec.json.decode(body) for body in task.events if body.startswith(_SENT)]
            moves += max((one["forwarded"].get("moves", 0) for one in sent), default=0)
    return moves


def check_walks(path: Path, verdict: Verdict) -> int:
    """Tell where an agent took a step again that was recorded; return how many were recorded."""
    with reading(path) as file:
        return sum(check_steps(task, verdict, _NAMES_STEPS) for task in file.tasks())
