"""The terminal session of `docs/tasks.md` is what happens when its commands are typed."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def session_script() -> Any:
    spec = importlib.util.spec_from_file_location("docs_session", ROOT / "docs" / "session.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_what_happens() -> None:
    script = session_script()
    shown = script.PART.search(script.PAGE.read_text(encoding="utf-8"))
    assert shown is not None, "the page has no session"
    happened = f"<!-- session begins -->\n{script.session()}\n<!-- session ends -->"
    assert shown[0] == happened, "stale: run `python docs/session.py`"
