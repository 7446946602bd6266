"""Which gateways a task passed, in the metadata of its request, as the callers before it claim."""

from typing import Any, cast

from dragoman.model.message import Metadata

HOPS = "dragoman/hops"
# In the metadata of a message that a gateway sends on: its caller's id for it.
CALLERS_ID = "dragoman/messageId"


def claimed_hops(metadata: Metadata) -> list[str]:
    """Return the ids of gateways, the last one last. What is not a list of texts is no claim."""
    value: object = metadata.get(HOPS)
    ids = cast("list[Any]", value) if isinstance(value, list) else []
    return [one for one in ids if isinstance(one, str)]
