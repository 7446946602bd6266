"""What `from dragoman import ...` offers is a promise: a name added or lost here is a decision."""

from types import ModuleType

import dragoman

NAMES = [
    "Agent",
    "AgentExtension",
    "AgentProvider",
    "AgentSkill",
    "App",
    "Artifact",
    "Caller",
    "Message",
    "Part",
    "Settings",
    "TaskFailed",
    "TaskRejected",
    "Turn",
]


def test_the_public_names_are_these() -> None:
    assert sorted(dragoman.__all__) == NAMES
    found = {
        name
        for name, value in vars(dragoman).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert found == set(NAMES)


def test_every_public_name_says_what_it_is() -> None:
    for name in NAMES:
        assert (getattr(dragoman, name).__doc__ or "").strip(), name


def test_the_version_is_a_version() -> None:
    assert [part.isdigit() for part in dragoman.__version__.split(".")] == [True] * 3
