"""What messages, and tasks of agents that know them by their caller's ids, are called at the agents
they are sent to.

To an agent all our callers are one, and two of them may have given their messages, or their tasks,
one id. An agent that works once on a message would hand one caller's task to another who knows its
id: so the id is our own, and the caller's goes along in the metadata. The owner of an agent that
only one tenant uses may have ids kept as they are.
"""

import hashlib
import uuid

import msgspec

from dragoman.engine.worker import Worker
from dragoman.gateway.agents import Registered
from dragoman.gateway.means import Means
from dragoman.model.identity import ContextId, MessageId, TaskId

# In the metadata of a forwarded message: what its caller calls it.
CALLERS_ID = "dragoman/messageId"
_fingerprint = msgspec.json.Encoder(order="deterministic").encode


def message_id_of(means: Means, worker: Worker, agent: str = "") -> str:
    """Return what the message is called there, the same however often it is sent; `agent` tells
    apart those that are sent it at once.

    It does not depend on our task, where the same message again leads to that: so it is the same if
    we end before the task is on disk, and the caller sends it again."""
    scope = worker.log.scope
    said = msgspec.structs.replace(worker.message, task_id=TaskId(""), context_id=ContextId(""))
    is_once = means.settings.idempotency and not worker.replay.turn
    which = "" if is_once else f"{worker.log.task_id} {worker.replay.turn}"
    own = [means.id, scope.tenant, scope.owner, which, said, worker.metadata]
    return hashlib.blake2b(
        _fingerprint([*own, agent] if agent else own), digest_size=16
    ).hexdigest()


def task_id_of(worker: Worker, own: str, *, is_ours: bool) -> str:
    """Return what a task is called at an agent that takes its id from its caller: as here, if that
    id is ours. `own` is what the message is called there; further messages of a task that has
    ended there begin other ones."""
    if is_ours and not worker.replay.turn:
        return worker.log.task_id
    return str(uuid.UUID(hex=own, version=4))


def sent_id(means: Means, worker: Worker, agent: Registered, url: str, own: str) -> MessageId:
    """Return under which id a message goes to an agent: our own for it, or the caller's where that
    is kept. Agents of this process always get ours: what they begin is counted by it, and nobody
    else may know it beforehand."""
    is_kept = agent.keep_message_ids and not means.directory.is_own(url)
    return worker.message.message_id if is_kept else MessageId(own)
