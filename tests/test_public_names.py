"""What `from dragoman import ...` offers is a promise: a name added or lost here is a decision."""

import subprocess
import sys

import pytest

import dragoman

NAMES = [
    "A2AError",
    "Agent",
    "AgentExtension",
    "AgentLoop",
    "AgentProvider",
    "AgentSkill",
    "Answer",
    "App",
    "Artifact",
    "ArtifactUpdate",
    "BearerTokens",
    "Budget",
    "BudgetExceeded",
    "Caller",
    "Client",
    "EventContext",
    "EventHooks",
    "Message",
    "Part",
    "PushConfig",
    "Settings",
    "StatusUpdate",
    "Stream",
    "SyncTurn",
    "Task",
    "TaskFailed",
    "TaskRejected",
    "TaskState",
    "Turn",
    "tool",
]


def test_the_public_names_are_these() -> None:
    assert sorted(dragoman.__all__) == NAMES
    assert [name for name in dir(dragoman) if not name.startswith("_")] == NAMES


def test_a_name_is_loaded_only_when_it_is_used() -> None:
    code = "import sys, dragoman; sys.exit('msgspec' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_name_nobody_knows_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Klient"):
        _ = dragoman.Klient


def test_every_public_name_says_what_it_is() -> None:
    for name in NAMES:
        assert (getattr(dragoman, name).__doc__ or "").strip(), name


def test_the_version_is_a_version() -> None:
    assert [part.isdigit() for part in dragoman.__version__.split(".")] == [True] * 3
