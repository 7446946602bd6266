"""What a store promises, one small Protocol per group, each with the rows it speaks of.

Every promise is a test in `dragoman.testing`. This room imports the model and the errors only; the
engine, the gateway and the stores import it. Begin with `tasks.py`; `Store` is the sum of what the
engine needs.
"""

from dragoman.stores.interface.bus import Bus, Heard, Rung
from dragoman.stores.interface.leases import Duty, Leases, died_alone
from dragoman.stores.interface.limits import Draw, Drawn, SharedLimits
from dragoman.stores.interface.pushes import DeadLetter, Push, PushStore
from dragoman.stores.interface.sealing import Sealing
from dragoman.stores.interface.store import Store, StoreSize, StoreTrouble
from dragoman.stores.interface.tasks import (
    LATEST,
    READ_BYTES,
    Append,
    Bodies,
    Create,
    Done,
    KeepReply,
    Known,
    LeaveNote,
    Note,
    Query,
    Snapshot,
    Survey,
    TaskPosition,
    TaskRow,
    TaskRows,
    TaskStore,
    Write,
    whole_task,
    write,
)
from dragoman.stores.interface.words import TasksFound, TaskWordIndex, TaskWords

__all__ = [
    "LATEST",
    "READ_BYTES",
    "Append",
    "Bodies",
    "Bus",
    "Create",
    "DeadLetter",
    "Done",
    "Draw",
    "Drawn",
    "Duty",
    "Heard",
    "KeepReply",
    "Known",
    "Leases",
    "LeaveNote",
    "Note",
    "Push",
    "PushStore",
    "Query",
    "Rung",
    "Sealing",
    "SharedLimits",
    "Snapshot",
    "Store",
    "StoreSize",
    "StoreTrouble",
    "Survey",
    "TaskPosition",
    "TaskRow",
    "TaskRows",
    "TaskStore",
    "TaskWordIndex",
    "TaskWords",
    "TasksFound",
    "Write",
    "died_alone",
    "whole_task",
    "write",
]
