"""A message whose answer was lost: whether the peer has it, and as which task."""

from dragoman.client.agent_connection import AgentConnection
from dragoman.errors import A2AError
from dragoman.model import operations as ops
from dragoman.model.message import Message
from dragoman.service import TaskPage, TaskReply

# How many of the latest tasks are looked through.
LATEST = 20


async def find_task(connection: AgentConnection, message: Message) -> str:
    """Return the task that a message has led to, if the peer has it among its latest; empty: none
    is known."""
    operation: ops.Operation = ops.ListTasks(
        context_id=message.context_id, page_size=LATEST, history=LATEST
    )
    if message.task_id:
        operation = ops.GetTask(task_id=message.task_id, history=LATEST)
    try:
        reply = await connection.answer(operation)
    except A2AError:
        # It lists no tasks, or is gone: whether it has the message stays unknown.
        return ""
    replies = reply.tasks if isinstance(reply, TaskPage) else []
    if isinstance(reply, TaskReply):
        replies = [reply]
    for one in replies:
        task = one.reading.task
        if any(known.message_id == message.message_id for known in task.history):
            return task.id
    return ""
