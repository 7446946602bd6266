"""The names of `selectools.a2a.types`: its records and its codes."""

from dragoman.compat.selectools.records import A2AError, A2ATask, AgentCard, AgentSkill, TaskState

__all__ = ["A2AError", "A2ATask", "AgentCard", "AgentSkill", "TaskState"]

PROTOCOL_VERSION = "0.2.6"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
TASK_NOT_FOUND = -32001
TASK_NOT_CANCELABLE = -32002
