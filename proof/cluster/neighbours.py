"""How much of the machine other programs used while something was timed: a time that was taken
beside them says little about us."""

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
# user, nice, system, irq, softirq, steal; what waits for a disk or idles is not use.
_BUSY = (1, 2, 3, 6, 7, 8)


class Moment(NamedTuple):
    """Processor seconds used until a moment: by all, and by this process and those below it."""

    at: float
    everybody: float
    ours: float


def moment() -> Moment:
    """Return what was used until now; zeros where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()
        everybody = sum(int(fields[place]) for place in _BUSY) / _TICKS
    except (OSError, ValueError, IndexError):
        everybody = 0.0
    return Moment(time.monotonic(), everybody, _ours())


def share_of_others(since: Moment) -> float:
    """Return which share of all processors others used since then."""
    now = moment()
    used = (now.everybody - since.everybody) - (now.ours - since.ours)
    room = (now.at - since.at) * (os.cpu_count() or 1)
    return max(0.0, used / room) if room > 0 else 0.0


def _ours() -> float:
    """Return the processor seconds of this process and all below it, with those that ended and
    were waited for."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    used: dict[int, int] = {}
    for name in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()
            used[int(name)] = sum(int(field) for field in fields[11:15])
            children[int(fields[1])].append(int(name))
        except (OSError, ValueError, IndexError):
            continue
    ticks, below = 0, [os.getpid()]
    while below:
        one = below.pop()
        ticks += used.get(one, 0)
        below += children[one]
    return ticks / _TICKS
