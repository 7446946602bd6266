"""The served API against its own document, by a tool that looks for where they disagree."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from api_site import SECRET, gateway

pytest.importorskip("schemathesis", reason="pip install 'dragoman[test]'")

WITHIN = 240
# How a request may be refused that the document does not allow.
REFUSALS = (400, 401, 403, 404, 405, 406, 409, 413, 414, 415, 422, 428, 429)
# What the document cannot say: that an agent, a task or a URL has to exist. A request that is right
# in all it can say may be refused for that.
LEFT_OUT = "positive_data_acceptance"


async def test_the_api_does_what_its_document_says(tmp_path: Path) -> None:
    async with gateway(tmp_path, payment_secret=SECRET) as site:
        step = {"name": "a step", "agentId": site.agent}
        definition = {"name": "a workflow", "steps": [step]}
        workflow = await site.ask("POST", "/workflows", definition, status=201)
        run = await site.ask("POST", f"/workflows/{workflow['id']}/execute", status=202)
        task = await site.make()
        await site.done(task["id"])
        config = tmp_path / "schemathesis.toml"
        config.write_text(
            _config(agent=site.agent, task=task["id"], workflow=workflow["id"], run=run["id"])
        )
        arguments = (
            *("--config-file", str(config), "run", f"{site.url}/api/v1/openapi.json"),
            *("--seed", "7", "--max-examples", "4", "--phases", "coverage,fuzzing"),
            *("--checks", "all", "--exclude-checks", LEFT_OUT, "--request-timeout", "10"),
            *("--generation-database", "none", "--no-shrink", "--no-color", "--warnings", "off"),
        )
        done = await asyncio.to_thread(_run, tmp_path, *arguments)
        assert done.returncode == 0, _short(done.stdout + done.stderr)
        operations = len(json.loads((await site.http.get("/api/v1/openapi.json")).content)["paths"])
        assert operations > 25 and "Tested: " in done.stdout
        # It was there to the end.
        assert (await site.http.get("/health")).status_code == 200


def _config(**ids: str) -> str:
    """Return what the tool puts into paths, so that it gets further than to a 404."""
    places = {
        "/api/v1/agents/{id}/heartbeat": {"path.id": ids["agent"]},
        "/api/v1/tasks/{id}": {"path.id": ids["task"]},
        "/api/v1/tasks/{id}/reply": {"path.id": ids["task"]},
        "/api/v1/tasks/{id}/stream": {"path.id": ids["task"]},
        "/api/v1/trust/{id}": {"path.id": ids["agent"]},
        "/api/v1/trust/{id}/rate": {"path.id": ids["agent"]},
        "/api/v1/workflows/{id}": {"path.id": ids["workflow"]},
        "/api/v1/workflows/{id}/execute": {"path.id": ids["workflow"]},
        "/api/v1/workflows/{id}/runs/{runId}": {
            "path.id": ids["workflow"],
            "path.runId": ids["run"],
        },
    }
    said = f"[checks.negative_data_rejection]\nexpected-statuses = {list(REFUSALS)}\n"
    for path, values in places.items():
        inside = ", ".join(f'"{name}" = "{value}"' for name, value in values.items())
        said += f'[[operations]]\ninclude-path = "{path}"\nparameters = {{ {inside} }}\n'
    return said


def _short(text: str) -> str:
    """Return what the tool says, without the megabytes it may have sent."""
    return "\n".join(line[:300] for line in text.splitlines())


def _run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment: dict[str, Any] = {**os.environ, "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )
