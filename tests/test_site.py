"""The site over the documents is built as `./dev docs` does it: every warning is an error.

A page that the navigation lacks, a link or an anchor that leads nowhere, and a name of the API that
does not exist are warnings of the builder.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.processes import ROOT

import dragoman


def site_script() -> Any:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "site.py"), "build", "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        # The builder may have to be fetched first.
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    script = site_script()
    for _, _, page in script.pages():
        built = (site / f"{page.stem}.html").read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="([^"]+)"', built)
        loaded += re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="([^"]+)"', built)
        assert loaded and not [one for one in loaded if "//" in one], page.name


def test_a_reader_can_search_and_copy_and_choose_the_colours(site: Path) -> None:
    page = (site / "quickstart.html").read_text(encoding="utf-8")
    assert "content.code.copy" in page and 'data-md-color-scheme="slate"' in page
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert any("kill -9" in one["text"] for one in index["docs"])


def test_the_api_page_has_every_public_name(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'id="dragoman\.([\w.]+)"', page))
    assert set(dragoman.__all__) <= shown
    # What a class inherits, and fields without a docstring, are there too.
    assert {"Client.send", "Turn.ask", "Agent.skill", "Task.status"} <= shown


def test_language_models_get_every_page(site: Path) -> None:
    script = site_script()
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    assert listed.startswith("# Dragoman\n\n> Dragoman turns a Python function")
    for section, title, page in script.pages():
        assert page.read_text(encoding="utf-8").strip() in whole
        if section:
            assert re.search(rf"^- \[{re.escape(title)}\]\({page.stem}\.html\)", listed, re.M), (
                title
            )


def test_what_leads_nowhere_is_a_warning_of_the_builder() -> None:
    # By default it lets most of these pass.
    settings = site_script().CONFIGURATION.read_text(encoding="utf-8")
    for kind in ("omitted_files", "absolute_links", "unrecognized_links", "anchors"):
        assert f"\n  {kind}: warn\n" in settings
