"""corvid-agent's A2A functions under their Python names: find and call a remote agent, run inbound
tasks as sessions of a process manager, build cards, and enforce a budget.

    from dragoman.compat.corvid import fetch_agent_card, handle_task_send, invoke_remote_agent

These functions keep tasks in memory, as the original does. `session_app` serves the same process
manager with the engine, where tasks outlive the process.
"""

from dragoman.compat.corvid.budget import (
    BudgetCheckResult,
    InvocationGuardConfig,
    SessionInvocationBudget,
    load_invocation_guard_config,
)
from dragoman.compat.corvid.cards import (
    build_agent_card,
    build_agent_card_for_agent,
    clear_tools,
    human_readable_name,
    register_tool,
)
from dragoman.compat.corvid.records import (
    A2AMessage,
    A2ATask,
    A2ATaskDeps,
    A2ATaskSendRequest,
    A2ATaskState,
    ExternalServiceError,
    NotFoundError,
    RemoteInvocationResult,
    ValidationError,
)
from dragoman.compat.corvid.remote import (
    RemoteAgents,
    clear_agent_card_cache,
    discover_agent,
    fetch_agent_card,
    invoke_remote_agent,
)
from dragoman.compat.corvid.sessions import SessionAgent, looks_injected, session_app
from dragoman.compat.corvid.tasks import (
    TaskStore,
    clear_task_store,
    handle_task_get,
    handle_task_send,
)
from dragoman.compat.corvid.tools import RemoteTools

__all__ = [
    "A2AMessage",
    "A2ATask",
    "A2ATaskDeps",
    "A2ATaskSendRequest",
    "A2ATaskState",
    "BudgetCheckResult",
    "ExternalServiceError",
    "InvocationGuardConfig",
    "NotFoundError",
    "RemoteAgents",
    "RemoteInvocationResult",
    "RemoteTools",
    "SessionAgent",
    "SessionInvocationBudget",
    "TaskStore",
    "ValidationError",
    "build_agent_card",
    "build_agent_card_for_agent",
    "clear_agent_card_cache",
    "clear_task_store",
    "clear_tools",
    "discover_agent",
    "fetch_agent_card",
    "handle_task_get",
    "handle_task_send",
    "human_readable_name",
    "invoke_remote_agent",
    "load_invocation_guard_config",
    "looks_injected",
    "register_tool",
    "session_app",
]
