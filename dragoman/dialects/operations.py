"""The table of operations: what each is called in each version; absent means not offered."""

import msgspec

from dragoman.model import operations as ops

# Operations 0.x and 1.0 know under several names; the first is the one we emit.
Names = tuple[str, ...]


class Row(msgspec.Struct, frozen=True):
    """One operation on every wire."""

    operation: type[ops.Operation]
    v1: str
    v0: Names = ()
    verbs: Names = ()
    # `{id}` is the task, `{config}` a push configuration.
    path: str = ""


ROWS = (
    Row(ops.SendMessage, "SendMessage", ("message/send",), ("POST",), "/message:send"),
    Row(
        ops.StreamMessage,
        "SendStreamingMessage",
        ("message/stream",),
        ("POST",),
        "/message:stream",
    ),
    Row(ops.GetTask, "GetTask", ("tasks/get",), ("GET",), "/tasks/{id}"),
    Row(ops.ListTasks, "ListTasks", (), ("GET",), "/tasks"),
    Row(ops.CancelTask, "CancelTask", ("tasks/cancel",), ("POST",), "/tasks/{id}:cancel"),
    # The proto binds GET, the tables of the specification say POST, clients send either.
    Row(
        ops.SubscribeToTask,
        "SubscribeToTask",
        ("tasks/resubscribe",),
        ("GET", "POST"),
        "/tasks/{id}:subscribe",
    ),
    Row(
        ops.CreatePush,
        "CreateTaskPushNotificationConfig",
        ("tasks/pushNotificationConfig/set",),
        ("POST",),
        "/tasks/{id}/pushNotificationConfigs",
    ),
    Row(
        ops.GetPush,
        "GetTaskPushNotificationConfig",
        ("tasks/pushNotificationConfig/get",),
        ("GET",),
        "/tasks/{id}/pushNotificationConfigs/{config}",
    ),
    Row(
        ops.ListPush,
        "ListTaskPushNotificationConfigs",
        ("tasks/pushNotificationConfig/list",),
        ("GET",),
        "/tasks/{id}/pushNotificationConfigs",
    ),
    Row(
        ops.DeletePush,
        "DeleteTaskPushNotificationConfig",
        ("tasks/pushNotificationConfig/delete",),
        ("DELETE",),
        "/tasks/{id}/pushNotificationConfigs/{config}",
    ),
    Row(
        ops.GetExtendedCard,
        "GetExtendedAgentCard",
        ("agent/getAuthenticatedExtendedCard", "agent/authenticatedExtendedCard"),
        ("GET",),
        "/extendedAgentCard",
    ),
)

BY_V1_METHOD = {row.v1: row for row in ROWS}
BY_V0_METHOD = {name: row for row in ROWS for name in row.v0}
_BY_OPERATION = {row.operation: row for row in ROWS}


def row_of(operation: ops.Operation) -> Row:
    """Return the row of an operation."""
    return _BY_OPERATION[type(operation)]
