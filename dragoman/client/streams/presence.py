"""Whether an agent is there: messages whose answer may take long, and the question that any answer
will do for."""

from dragoman.client.agent_connection import AgentConnection
from dragoman.client.pending_request import NotServed
from dragoman.client.streams.life_signs import LifeSigns, SilenceWatch
from dragoman.errors import A2AError, Overloaded, TimedOut, Unreachable
from dragoman.model import operations as ops
from dragoman.model.identity import TaskId
from dragoman.service import Reply


async def send_watched(connection: AgentConnection, operation: ops.SendMessage) -> Reply:
    """Return an agent's reply to a message, however long it takes, for as long as the agent shows
    that it is there; raises `NoSignOfLife`."""
    watch = SilenceWatch(
        signs := LifeSigns(),
        connection.options.silence,
        lambda: show_of_life(connection, operation),
        lambda: False,
    )
    signs.release()
    watch.answering(may_ask=True)
    try:
        with watch:
            return await connection.answer(operation)
    finally:
        watch.close()


async def show_of_life(
    connection: AgentConnection, operation: ops.SendMessage | ops.SubscribeToTask
) -> None:
    """Ask an agent for a task that it may not know: any answer shows that it is there. Raises what
    shows nothing."""
    subject = operation.task_id if isinstance(operation, ops.SubscribeToTask) else ""
    if isinstance(operation, ops.SendMessage):
        subject = operation.message.task_id or operation.message.message_id
    try:
        await connection.answer_once(ops.GetTask(task_id=TaskId(subject), history=0))
    except A2AError as error:
        if is_away(error):
            raise


def is_away(error: A2AError) -> bool:
    """Say whether an error shows no life: none came from the agent, or one from what stands before
    it."""
    if isinstance(error, Overloaded):
        return error.code == 503
    return isinstance(error, Unreachable | TimedOut) and not isinstance(error, NotServed)
