"""Processes that spend credits are killed anywhere; each time the ledger is looked at as a whole.

Killed at random times, before random statements, and at named places within a settlement. Many
spend one account at once. What was told to be durable is written down outside of the store.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from dragoman.errors import ConfigError
from dragoman.model.money import MICRO
from dragoman.stores.sqlite.schema import run as query
from proof.money.audit import Audit, opened
from proof.money.spenders import Answer, Job, JobRequest
from proof.results import Progress, Result, Row, bound, silent, workplace

SPENDERS = 64
PROCESSES = 4
PRICE = 7 * MICRO
GRANTED = 1_000 * MICRO
# Crashes of one file: a fresh one begins with accounts that were not opened yet.
_PER_FILE = 20
# Where within a write a process dies, by what the next statement has.
POINTS = {
    "before an order is recorded": "INSERT INTO errands",
    "before a hold is reserved": "UPDATE accounts SET held",
    "before an account moves": "UPDATE accounts SET balance",
    "before a transfer is written": "INSERT INTO transfers",
    "between transfer and entries": "INSERT INTO entries",
    "before an order changes, ends or leaves its escrow": "UPDATE errands SET",
    "before a task that ends is looked up": "SELECT * FROM errands WHERE task = ? AND ended_at",
    "before a dispute is recorded": "INSERT INTO disputes",
    "before a payment is recorded": "INSERT INTO payment_events",
    "before a purchase is paid": "UPDATE checkouts",
    "before a commit": "COMMIT",
    "after a commit": "BEGIN IMMEDIATE",
}
_STATEMENTS = 250
_SECONDS = 0.25
# Longer than any job takes; one that hangs ends the proof.
_WITHIN = 60.0


class LedgerResult(Result, kw_only=True):
    """What became of the ledger."""

    proof: str = "ledger"
    # Processes killed, and how many of those at which place.
    crash_points: int
    points: dict[str, int]
    errands: int
    transfers: int
    # Sums that were not zero, balances that were not those of their entries.
    sum_violations: int
    # Accounts that held or spent more than they had.
    overspend: int
    double_charges: int
    # Holds of tasks that had ended; and all holds once every task had.
    holds_left: int
    # What was told to be durable and is not there.
    lost: int
    # Differences that a verification of the ledger finds.
    differences: int
    # Who spent one account at once, what they asked for and what they got.
    spenders: int
    accepted: int
    affordable: int

    def rows(self) -> list[Row]:
        """Return the promises."""
        crashes = f"{self.crash_points} crashes"
        return [
            Row(
                "Sums that are not zero, or balances that are not their entries'",
                f"{self.sum_violations} in {self.transfers:,} transfers, {crashes}",
                not self.sum_violations and self.transfers > 0,
                self.bound,
            ),
            Row(
                "Tasks that were charged twice, or for nothing",
                f"{self.double_charges} of {self.errands:,}, {crashes}",
                not self.double_charges,
                bound(self.errands),
            ),
            Row(
                f"Credits that {self.spenders} spenders of one account overspent",
                f"{self.overspend} overspent, {self.accepted} of {self.affordable} affordable "
                "tasks accepted",
                not self.overspend and self.accepted == self.affordable,
            ),
            Row("Holds left by tasks that had ended", f"{self.holds_left}", not self.holds_left),
            Row("Acknowledged writes that are gone", f"{self.lost}", not self.lost),
            Row("Differences found by a verification", f"{self.differences}", not self.differences),
        ]


class Stage:
    """The process that forks the others."""

    def __init__(self, folder: Path, module: str = "proof.money.spenders") -> None:
        self._log = folder / "spenders.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def begin(self, job: Job) -> int:
        """Begin a job; return its process."""
        return self._ask(JobRequest(job)).pid

    def wait(self, pid: int) -> int:
        """Wait until a process has ended; return how."""
        status = self._ask(JobRequest(wait=pid)).status
        assert status is not None
        return os.waitstatus_to_exitcode(status)

    def finish(self, job: Job) -> None:
        """Do a job to its end."""
        if code := self.wait(self.begin(job)):
            self.refuse(f"a process that was not killed ended with {code}")

    def refuse(self, what: str) -> None:
        """Say what went wrong with the proof itself."""
        said = self._log.read_text(errors="replace")[-2000:]
        raise ConfigError(f"{what}:\n{said}")

    def _ask(self, asked: JobRequest) -> Answer:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self.refuse("the process that forks has ended")
        return msgspec.json.decode(line, type=Answer)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Crashes:
    """Kills one process after another."""

    def __init__(self, stage: Stage, folder: Path, seed: int, audit: Audit) -> None:
        self._stage = stage
        self._folder = folder
        self._seed = seed
        self._chance = random.Random(seed)
        self._audit = audit
        self.points = Counter[str]()

    def run(self, count: int, progress: Progress) -> None:
        """Crash so often, on a fresh file now and then."""
        for number in range(count):
            store = self._folder / f"ledger-{number // _PER_FILE}.db"
            acks = store.with_suffix(".acks")
            self._crash(number, store, acks)
            self._audit.look(store, acks)
            if (number + 1) % _PER_FILE == 0 or number + 1 == count:
                self._finish(store, acks)
            progress(f"crash {number + 1}/{count}, {len(self._audit.findings)} findings")

    def _crash(self, number: int, store: Path, acks: Path) -> None:
        chance = self._chance
        job = Job(kind="errands", store=str(store), acks=str(acks), seed=self._seed + number)
        way = number % 4
        if way == 0:
            place, delay = "at a random time", chance.uniform(0.02, _SECONDS)
        elif way == 1:
            place, delay = "before a random statement", 0.0
            job = msgspec.structs.replace(job, dies_at=chance.randint(1, _STATEMENTS))
        else:
            place, delay = chance.choice(list(POINTS)), 0.0
            at = chance.randint(1, 4)
            job = msgspec.structs.replace(job, dies_at=at, point=POINTS[place])
        pid = self._stage.begin(job)
        if delay:
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        code = self._stage.wait(pid)
        if code != -signal.SIGKILL:
            self._stage.refuse(f"a process ended with {code} before it was killed")
        self.points[place] += 1

    def _finish(self, store: Path, acks: Path) -> None:
        """Have the rest ended; then nothing may be held."""
        job = Job(kind="finish", store=str(store), acks=str(acks), seed=self._seed)
        self._stage.finish(job)
        self._audit.look(store, acks, is_over=True)


def _spend(stage: Stage, folder: Path, seed: int, audit: Audit) -> int:
    """Have many spend one account at once, in several processes; return what was accepted."""
    store, acks = folder / "one-account.db", folder / "one-account.acks"
    job = Job(
        kind="spend",
        store=str(store),
        acks=str(acks),
        seed=seed,
        spenders=SPENDERS // PROCESSES,
        price=PRICE,
    )
    pids = [stage.begin(job) for _ in range(PROCESSES)]
    for pid in pids:
        if code := stage.wait(pid):
            stage.refuse(f"a spender ended with {code}")
    audit.look(store, acks)
    with opened(store) as connection:
        ((held,),) = query(connection, "SELECT coalesce(sum(held), 0) FROM errands")
        audit.counts["overspend"] += int(held > GRANTED)
        ((count,),) = query(connection, "SELECT count(*) FROM errands")
    stage.finish(msgspec.structs.replace(job, kind="finish"))
    audit.look(store, acks, is_over=True)
    return int(count)


def prove(kills: int, seed: int, *, folder: Path, progress: Progress = silent) -> LedgerResult:
    """Run the proof in a folder."""
    began = time.monotonic()
    audit = Audit()
    stage = Stage(folder)
    try:
        crashing = Crashes(stage, folder, seed, audit)
        crashing.run(kills, progress)
        progress(f"{SPENDERS} spenders of one account")
        accepted = _spend(stage, folder, seed, audit)
    finally:
        stage.close()
    counts = audit.counts
    return LedgerResult(
        seed=seed,
        seconds=round(time.monotonic() - began, 1),
        bound=bound(kills),
        crash_points=kills,
        points=dict(sorted(crashing.points.items())),
        errands=counts["errands"],
        transfers=counts["transfers"],
        sum_violations=counts["sum_violations"],
        overspend=counts["overspend"],
        double_charges=counts["double_charges"],
        holds_left=counts["holds_left"],
        lost=counts["lost"],
        differences=counts["differences"],
        spenders=SPENDERS,
        accepted=accepted,
        affordable=GRANTED // PRICE,
        findings=audit.findings,
    )


def run(kills: int = 200, seed: int = 1, *, progress: Progress = silent) -> LedgerResult:
    """Kill spenders anywhere and check that the ledger is whole each time."""
    if not hasattr(os, "fork"):
        raise ConfigError("this proof forks processes, which this system cannot")
    with workplace() as folder:
        return prove(kills, seed, folder=folder, progress=progress)
