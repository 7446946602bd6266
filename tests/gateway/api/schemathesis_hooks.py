"""What the tool cannot make up: ids of what exists. Loaded by schemathesis, in its own process.

Requests that fit the document get them, so that they reach more than a 404; those that are meant
not to fit stay as they are. At the end it leaves how often each operation answered with what.
"""

import atexit
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import schemathesis

IDS: dict[str, str] = json.loads(os.environ["GATEWAY_IDS"])
# Of what is removed or ended, another is made up: that there is none is an answer too.
SPARED = ("DELETE /api/v1/agents/{id}", "POST /api/v1/tasks/{id}/cancel")
_answers: dict[str, Counter[int]] = {}


@schemathesis.hook
def before_call(context: Any, case: Any, **kwargs: Any) -> None:
    """Put ids of what exists into a request that fits the document."""
    if case.meta is None or case.meta.generation.mode.is_negative:
        return
    label = case.operation.label
    if label not in SPARED:
        parts = case.operation.path.removeprefix("/api/v1/").split("/")
        kind = {"agents": "agent", "trust": "agent", "tasks": "task", "workflows": "workflow"}
        kind |= {"disputes": "task", "rollouts": "rollout"}
        if "{id}" in parts and parts[0] in kind:
            case.path_parameters["id"] = IDS[kind[parts[0]]]
        if "{runId}" in parts:
            case.path_parameters["runId"] = IDS["run"]
    if isinstance(case.body, dict):
        _fill(case.body)


def _fill(body: dict[str, Any]) -> None:
    known = {"assignedAgentId": "agent", "agentId": "agent", "taskId": "task", "endpoint": "url"}
    for name, value in known.items():
        if name in body:
            body[name] = IDS[value]
    for name in ("replicas", "origins"):
        body.pop(name, None)
    if isinstance(body.get("credential"), dict):
        body["credential"] = {"kind": "bearer", "value": "a-secret"}
    # A skill's id is there once, and a step depends on earlier ones.
    if isinstance(body.get("skills"), list):
        body["skills"] = body["skills"][:1]
    for step in body.get("steps") or []:
        step["agentId"] = IDS["agent"]
        step["dependsOn"] = []


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """Count the answer."""
    _answers.setdefault(case.operation.label, Counter())[response.status_code] += 1


@atexit.register
def _leave() -> None:
    Path(os.environ["GATEWAY_ANSWERS"]).write_text(json.dumps(_answers))
