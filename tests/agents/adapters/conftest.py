"""The environments of the frameworks: made beside the other tests."""

from pathlib import Path

import pytest
from harness import preparing

_PROGRAM = Path(__file__).parent / "frameworks.py"


def pytest_collection_finish(session: pytest.Session) -> None:
    needing = {"frameworks", "crew"}
    is_wanted = any(needing & {*getattr(item, "fixturenames", ())} for item in session.items)
    preparing.begin(session, _PROGRAM, is_wanted=is_wanted)


def pytest_sessionfinish(session: pytest.Session) -> None:
    preparing.end(session, _PROGRAM)
