"""The table of operations: what each is called in each version; absent means not offered."""

import msgspec

from dragoman.model import operations as ops

# Operations 0.x and 1.0 know under several names; the first is the one we emit.
Names = tuple[str, ...]


class OperationRow(msgspec.Struct, frozen=True):
    """One operation on every wire."""

    operation: type[ops.Operation]
    v1: str
    v0: Names = ()
    verbs: Names = ()
    # `{id}` is the task, `{config}` a push configuration.
    path: str = ""
    # What 0.3 has over REST alone.
    v0_rest: str = ""
    # The path of 0.3 where it is not that of 1.0 below `/v1`.
    path_0_3: str = ""

    def method(self, version: str) -> str:
        """Return what a version calls the operation; empty where it has none."""
        if version == "1.0":
            return self.v1
        return self.v0[0] if self.v0 else self.v0_rest

    def path_of(self, version: str) -> str:
        """Return the operation's path in a version."""
        return self.path if version == "1.0" else self.path_0_3 or f"/v1{self.path}"


ROWS = (
    OperationRow(ops.SendMessage, "SendMessage", ("message/send",), ("POST",), "/message:send"),
    OperationRow(
        ops.StreamMessage,
        "SendStreamingMessage",
        ("message/stream",),
        ("POST",),
        "/message:stream",
    ),
    OperationRow(ops.GetTask, "GetTask", ("tasks/get",), ("GET",), "/tasks/{id}"),
    OperationRow(ops.ListTasks, "ListTasks", (), ("GET",), "/tasks", v0_rest="tasks/list"),
    OperationRow(ops.CancelTask, "CancelTask", ("tasks/cancel",), ("POST",), "/tasks/{id}:cancel"),
    # The proto binds GET, the tables of the specification say POST, clients send either.
    OperationRow(
        ops.SubscribeToTask,
        "SubscribeToTask",
        ("tasks/resubscribe",),
        ("GET", "POST"),
        "/tasks/{id}:subscribe",
    ),
    OperationRow(
        ops.CreatePush,
        "CreateTaskPushNotificationConfig",
        ("tasks/pushNotificationConfig/set",),
        ("POST",),
        "/tasks/{id}/pushNotificationConfigs",
    ),
    OperationRow(
        ops.GetPush,
        "GetTaskPushNotificationConfig",
        ("tasks/pushNotificationConfig/get",),
        ("GET",),
        "/tasks/{id}/pushNotificationConfigs/{config}",
    ),
    OperationRow(
        ops.ListPush,
        "ListTaskPushNotificationConfigs",
        ("tasks/pushNotificationConfig/list",),
        ("GET",),
        "/tasks/{id}/pushNotificationConfigs",
    ),
    OperationRow(
        ops.DeletePush,
        "DeleteTaskPushNotificationConfig",
        ("tasks/pushNotificationConfig/delete",),
        ("DELETE",),
        "/tasks/{id}/pushNotificationConfigs/{config}",
    ),
    OperationRow(
        ops.GetExtendedCard,
        "GetExtendedAgentCard",
        ("agent/getAuthenticatedExtendedCard", "agent/authenticatedExtendedCard"),
        ("GET",),
        "/extendedAgentCard",
        path_0_3="/v1/card",
    ),
)

BY_V1_METHOD = {row.v1: row for row in ROWS}
BY_V0_METHOD = {name: row for row in ROWS for name in row.v0}
BY_V0_REST_METHOD = {row.v0_rest: row for row in ROWS if row.v0_rest}
_BY_OPERATION = {row.operation: row for row in ROWS}


def row_of(operation: ops.Operation) -> OperationRow:
    """Return the row of an operation."""
    return _BY_OPERATION[type(operation)]


def row_by(kind: type[ops.Operation]) -> OperationRow:
    """Return the row of a kind of operation."""
    return _BY_OPERATION[kind]
