"""What readers of the R house dialect see besides 0.3: which trace a status belongs to."""

import msgspec

from dragoman.model.events import StatusUpdate
from dragoman.model.message import Message, Metadata
from dragoman.model.record import Recorded
from dragoman.service import Batch, Opening

# Where its callers call.
PATH = "/api/a2a"


def with_trace(batch: Batch, trace: Metadata) -> Batch:
    """Return events of a stream with their trace, which an agent may not set for them."""
    if isinstance(batch, Opening | Message):
        return batch
    return [_with_trace(recorded, trace) for recorded in batch]


def _with_trace(recorded: Recorded, trace: Metadata) -> Recorded:
    if not recorded.is_status:
        return recorded
    event = recorded.event
    assert isinstance(event, StatusUpdate), "it is one"
    return Recorded(
        recorded.seq, msgspec.structs.replace(event, metadata={**event.metadata, **trace})
    )
