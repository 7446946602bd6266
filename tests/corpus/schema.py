"""The request messages of 1.0 and 0.3 as data: field, type, whether it must be there.

`WRONG` says which values a type refuses. Values whose reading is open (a boolean as text, a role in
lower case) are `DOUBTFUL`: such a request names an unknown task, so no reading creates anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Field(NamedTuple):
    """One member of a request; `type` is a key of WRONG."""

    path: str
    type: str
    required: bool = False


NOT_STRING = [0, -7, 1.5, 1e30, True, False, [], ["a"], {}, {"a": "b"}]
NOT_OBJECT = ["", "text", "{}", 0, 3.25, True, False, [], [{}], [["a", 1]]]
NOT_ARRAY = ["", "a", "[]", 1, 2.5, True, False, {}, {"0": "a"}]
NOT_BOOL = ["", "yes", "no", "on", 0, 1, 2, -1, 1.5, [], [True], {}, {"value": True}]
NOT_INT = [
    "", "abc", "1.5", " ", "0x10", "1_000", "--1", "٣", "１", "½", "NaN", "1,0", "1 2", "null",
    1.5, -0.5, 1e20, True, False, [], [1], {}, {"value": 1},
    2**31, -(2**31) - 1, 2**32, 2**53, 2**63, 2**64, 10**40, "2147483648", "9" * 30,
]  # fmt: skip
NEGATIVE = [-1, -2, -100, -(2**31), "-1", -1.0]
NOT_PAGE_SIZE = [0, 101, 102, 1000, 2**31 - 1, "0", "101"]
NOT_ROLE = [
    "ROLE_UNSPECIFIED", 0, "ROLE_ADMIN", "ROLE_", "ROLE", "Role_User", "ROLE_USER ", " ROLE_USER",
    "ROLE_USER\x00", "system", "assistant", "", 3, -1, 99, 1.5, 2**31, True, False, [],
    ["ROLE_USER"],
    {}, {"role": "ROLE_USER"}, "ROLE_USER,ROLE_AGENT", "RОLE_USER",
]  # fmt: skip
NOT_OLD_ROLE = [
    "admin", "system", "assistant", "", "User", "USER", "user ", " user", "users", "user\x00",
    "uѕer",
    0, 1, 3, -1, 1.5, True, False, [], ["user"], {}, {"role": "user"},
]  # fmt: skip
NOT_STATE = [
    "TASK_STATE_FOO", "TASK_STATE_", "TASK_STATE", "done", "Completed", "TASK_STATE_COMPLETED ",
    "TASK_STATE_COMPLETED\x00", "TASK_STATE_WORKING,TASK_STATE_FAILED", "task_state_working",
    "ROLE_USER", 9, 99, -1, 1.5, 2**31, True, False, [], [3], {}, {"state": 3},
]  # fmt: skip
NOT_TIME = [
    "yesterday", "now", "", " ", "2024-13-01T00:00:00Z", "2024-02-30T00:00:00Z",
    "2024-00-01T00:00:00Z",
    "2024-01-32T00:00:00Z", "2024-01-01T25:00:00Z", "2024-01-01T00:61:00Z", "2024-01-01T00:00:61Z",
    "2024-01-01T00:00:00+99:00", "2024-01-01T00:00:00ZZ", "2024-01-01T00:00:00 Z", "T00:00:00Z",
    "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "-2024-01-01T00:00:00Z", "2024/01/01",
    "01.02.2024", "1704067200", "２０２４-01-01T00:00:00Z",
    "2024-01-01T00:00:00Z\x00", "2024-1-1T0:0:0Z", 1704067200, 1.5, 0, True, False, [], {},
    {"seconds": 1}, "9" * 100,
]  # fmt: skip
NOT_BASE64 = [
    "!", "!!!!", "a", "abcde", "ab=c", "=abc", "a===", "ab c", "ab\nc", "é", "aGk=\x00", "aGk=aGk=",
    "#", "%41", "data:;base64,aGk=", "\u200b", 0, 1.5, True, False, [], [104, 105], {},
]  # fmt: skip

WRONG: dict[str, list[Any]] = {
    "string": NOT_STRING,
    "id": NOT_STRING,
    "object": NOT_OBJECT,
    "bool": NOT_BOOL,
    "length": NOT_INT + NEGATIVE,
    "size": NOT_INT + NEGATIVE + NOT_PAGE_SIZE,
    "role": NOT_ROLE,
    "old-role": NOT_OLD_ROLE,
    "state": NOT_STATE,
    "time": NOT_TIME,
    "bytes": NOT_BASE64,
    "strings": NOT_ARRAY,
    "message": NOT_OBJECT,
    "parts": [*NOT_ARRAY, []],
}
# What one element of a list may not be; null is no element, though it unsets a member.
ELEMENT: dict[str, list[Any]] = {"strings": [*NOT_STRING, None], "parts": [*NOT_OBJECT, None]}

DOUBTFUL: dict[str, list[Any]] = {
    "bool": ["true", "false", "True", "TRUE"],
    "length": ["1e3", "+1", " 1", "007", 1e3],
    "role": ["user", "agent", "role_user"],
    "old-role": ["ROLE_USER", "ROLE_AGENT"],
    "bytes": ["====", "aGk==", "aGk="],
}

MESSAGE = [
    Field("message", "message", True),
    Field("message.messageId", "id", True),
    Field("message.contextId", "id"),
    Field("message.taskId", "id"),
    Field("message.role", "role", True),
    Field("message.parts", "parts", True),
    Field("message.metadata", "object"),
    Field("message.extensions", "strings"),
    Field("message.referenceTaskIds", "strings"),
]
CONFIGURATION = [
    Field("configuration", "object"),
    Field("configuration.acceptedOutputModes", "strings"),
    Field("configuration.historyLength", "length"),
]
SEND = [
    *MESSAGE,
    *CONFIGURATION,
    Field("configuration.returnImmediately", "bool"),
    Field("metadata", "object"),
    Field("tenant", "string"),
]
# 0.x forgives a missing id, role or kind, and has its own words for roles.
OLD_SEND = [
    *(
        field._replace(type="old-role") if field.type == "role" else field
        for field in (f._replace(required=False) if f.type == "id" else f for f in MESSAGE)
    ),
    *CONFIGURATION,
    Field("configuration.blocking", "bool"),
    Field("metadata", "object"),
]
PART = [
    Field("text", "string"),
    Field("raw", "bytes"),
    Field("url", "string"),
    Field("metadata", "object"),
    Field("filename", "string"),
    Field("mediaType", "string"),
]
TASK_ID = Field("id", "id", True)
TENANT = Field("tenant", "string")
LIST = [
    Field("contextId", "id"),
    Field("status", "state"),
    Field("pageSize", "size"),
    Field("pageToken", "string"),
    Field("historyLength", "length"),
    Field("statusTimestampAfter", "time"),
    Field("includeArtifacts", "bool"),
    TENANT,
]
READS = {
    "GetTask": [TASK_ID, Field("historyLength", "length"), TENANT],
    "CancelTask": [TASK_ID, Field("metadata", "object"), TENANT],
    "SubscribeToTask": [TASK_ID, TENANT],
    "ListTasks": LIST,
}
PUSH_ID = Field("taskId", "id", True)
PUSH = {
    "CreateTaskPushNotificationConfig": [
        PUSH_ID,
        Field("id", "id"),
        Field("url", "string", True),
        Field("token", "string"),
        Field("authentication", "object"),
        Field("authentication.scheme", "string"),
        TENANT,
    ],
    "GetTaskPushNotificationConfig": [PUSH_ID, Field("id", "id", True), TENANT],
    "ListTaskPushNotificationConfigs": [PUSH_ID, Field("pageSize", "length"), TENANT],
    "DeleteTaskPushNotificationConfig": [PUSH_ID, Field("id", "id", True), TENANT],
}
OLD_READS = {
    "tasks/get": [TASK_ID, Field("historyLength", "length"), Field("metadata", "object")],
    "tasks/cancel": [TASK_ID, Field("metadata", "object")],
    "tasks/resubscribe": [TASK_ID, Field("metadata", "object")],
}
OLD_PUSH = {
    "tasks/pushNotificationConfig/set": [PUSH_ID, Field("pushNotificationConfig", "object", True)],
    "tasks/pushNotificationConfig/get": [TASK_ID, Field("pushNotificationConfigId", "id")],
    "tasks/pushNotificationConfig/list": [TASK_ID],
    "tasks/pushNotificationConfig/delete": [TASK_ID, Field("pushNotificationConfigId", "id", True)],
}


def snake(name: str) -> str:
    """Return the proto spelling of a JSON name, which 1.0 accepts as well."""
    return "".join("_" + c.lower() if c.isupper() else c for c in name)


def snaked(value: Any) -> Any:
    """Return the value with every member in the proto spelling; free JSON has only its own."""
    if isinstance(value, dict):
        return {
            snake(key): item if key in ("metadata", "data") else snaked(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [snaked(item) for item in value]
    return value
