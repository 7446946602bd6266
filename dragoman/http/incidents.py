"""What a caller is told of an unexpected failure: an incident id, or that memory is short."""

import logging
import sys

from dragoman.errors import A2AError, InternalError, Overloaded
from dragoman.model.identity import new_id

logger = logging.getLogger("dragoman")


def incident() -> A2AError:
    """Log the exception in hand and return what the caller may know of it."""
    if _is_memory(sys.exc_info()[1]):
        # The request that asked for too much gives it back; the others go on.
        logger.error("there is no memory left for a request", exc_info=True)
        return Overloaded("The server has no memory left for this, try again later")
    incident = new_id()
    logger.exception("incident %s", incident, extra={"incident": incident})
    return InternalError(incident=incident)


def _is_memory(error: BaseException | None) -> bool:
    """Tell whether an error is that there is no memory left: a thread needs some as well."""
    is_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    return isinstance(error, MemoryError) or is_thread
