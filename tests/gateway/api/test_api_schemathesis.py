"""The served API against its own document, by a tool that looks for where they disagree."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.gateway.api.api import TABLE
from tests.gateway.api.api_site import gateway

pytest.importorskip("schemathesis", reason="pip install 'dragoman[test]'")

HOOKS = Path(__file__).parent / "schemathesis_hooks.py"
WITHIN = 900
# How a request may be refused that the document does not allow.
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 414, 415, 422, 428, 429]
# What the document cannot say: that a URL leads somewhere, that a task has ended or has not. A
# request that is right in all it can say may be refused for that.
LEFT_OUT = "positive_data_acceptance"
# These need what nobody can make up: the signature of a payment, a card that is held, a task that
# was paid, runs and tasks that have not ended, a key, which is made for known callers; or are left
# alone, like the document itself.
NEVER_DONE = {
    "describe",
    "payment_webhook",
    "accept_card",
    "refuse_card",
    "refund_task",
    "cancel_run",
    "cancel_task",
    "reply_to_task",
    "create_key",
    "revoke_key",
    "remove_agent",
    # Of two agents, which the tool would have to tell apart; each rollout ends once.
    "start_rollout",
    "change_rollout",
    "promote_rollout",
    "roll_back_rollout",
    # Of the one task there is, only after it was disputed.
    "resolve_dispute",
}


async def test_the_api_does_what_its_document_says(tmp_path: Path) -> None:
    async with gateway(tmp_path, keys=str(tmp_path / "keys.json")) as site:
        step = {"name": "a step", "agentId": site.agent}
        definition = {"name": "a workflow", "steps": [step]}
        workflow = await site.ask("POST", "/workflows", definition, status=201)
        run = await site.ask("POST", f"/workflows/{workflow['id']}/execute", status=202)
        versions = [
            await site.ask("POST", "/agents", {"endpoint": site.agent_url, **more}, status=201)
            for more in ({"repeatable": True}, {"isPaused": True})
        ]
        agent, candidate = (one["id"] for one in versions)
        body = {"agentId": agent, "candidateId": candidate}
        rollout = await site.ask("POST", "/rollouts", body, status=201)
        task = await site.make()
        await site.done(task["id"])
        ids = {"agent": site.agent, "url": site.agent_url, "task": task["id"]}
        ids |= {"workflow": workflow["id"], "run": run["id"], "rollout": rollout["id"]}

        done = await asyncio.to_thread(_run, tmp_path, site.url, ids)
        assert done.returncode == 0, _short(done.stdout + done.stderr)
        # It was there to the end.
        assert (await site.http.get("/health")).status_code == 200

    answers = json.loads((tmp_path / "answers.json").read_text())
    successes = {
        row.name: sum(
            count
            for status, count in answers.get(f"{row.verb} {row.path}", {}).items()
            if status.startswith("2")
        )
        for row in TABLE.endpoints
    }
    assert {name for name, count in successes.items() if not count} <= NEVER_DONE


def _short(text: str) -> str:
    """Return what the tool says, without the megabytes it may have sent."""
    return "\n".join(line[:300] for line in text.splitlines())


def _run(folder: Path, url: str, ids: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    config = folder / "schemathesis.toml"
    config.write_text(f"[checks.negative_data_rejection]\nexpected-statuses = {REFUSALS}\n")
    arguments = (
        *("--config-file", str(config), "run", f"{url}/api/v1/openapi.json"),
        *("--seed", "7", "--max-examples", "4", "--phases", "coverage,fuzzing"),
        *("--checks", "all", "--exclude-checks", LEFT_OUT, "--request-timeout", "10"),
        *("--generation-database", "none", "--no-shrink", "--no-color", "--warnings", "off"),
    )
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": str(HOOKS),
        "GATEWAY_IDS": json.dumps(ids),
        "GATEWAY_ANSWERS": str(folder / "answers.json"),
    }
    return subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN,
    )
