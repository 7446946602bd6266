"""Write the conformance report of the command line: `python docs/cli_conformance.py`.

`docs/cli-conformance.yaml` is the report the a2a-cli specification asks for,
`docs/cli-conformance.md` the same for people. Both are made from the registry and from the markers
of the tests that carry its ids; a test fails when they are stale.
"""

import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dragoman.cli import failures  # noqa: E402 - see above
from tests.cli.requirements.registry import CARRIED, REGISTRY  # noqa: E402 - found by the path above

REPORT = ROOT / "docs" / "cli-conformance.yaml"
PAGE = ROOT / "docs" / "cli-conformance.md"
FOLDER = "tests/cli/requirements"
_CODES = (
    failures.USAGE,
    failures.CARD_NOT_FOUND,
    failures.CARD_INVALID,
    failures.UNREACHABLE,
    failures.CREDENTIALS_MISSING,
    failures.AUTH_FAILED,
    failures.TIMEOUT,
    failures.INTERNAL,
)
_OF_DEFAULTS = "A2ACLI_DEFAULT_001"
# Each default the specification names, and the test that shows it and undoes it.
_DEFAULTS = {
    "transport": "test_the_order_of_the_card_is_the_default_transport",
    "wait": "test_send_waits_by_default",
    "output": "test_text_is_the_default_output",
    "verbosity": "test_concise_is_the_default_amount",
    "a2a_version": "test_the_highest_common_version_is_the_default",
    "tls": "test_certificates_are_verified_by_default",
}
# A tier stands only on these.
_FINE = {"pass", "na"}


def report() -> dict[str, Any]:
    """Return the report as plain values."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = {id: _row(id, entry) for id, entry in REGISTRY.items()}
    return {
        "report": {
            "tool": "dragoman",
            "version": project["version"],
            "language": "Python",
            "repository": None,
            "maintainer": "the authors of dragoman",
            "dates": {"specification": "2026-08-17", "measured": "with every run of the tests"},
            "license": project["license"],
            "spec": "a2a-cli",
            "spec_version": "0.2",
            "spec_revision": "2026-08-17",
            "a2a_versions": ["1.0", "0.3", "0.2"],
            "agent_tested": f"dragoman demo-server {project['version']} and scripted agents",
            # No kit for 1.0 has been run against it.
            "agent_tck_conformant": "not_measured",
            "transports_covered": ["JSONRPC", "HTTP+JSON", "GRPC"],
            "tier_claimed": tier_of(rows),
            # What is measured with an option that is not the default.
            "options_used": ["--strict-version"],
        },
        "summary": _summary(rows),
        "requirements": rows,
        "default_001_breakdown": _defaults(),
        "error_codes": [{"code": code, "exit": failures.EXITS.get(code, 1)} for code in _CODES],
        "attestation": {
            "method": "Each id passes when the tests named as evidence do; they run the command as"
            " a process and look at stdout, stderr, exit and the requests the agent saw.",
            "reproduce": f"pytest {FOLDER}",
        },
    }


def _row(id: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    evidence = CARRIED.get(id, [])
    status, note = "pass", entry.get("note", "")
    if "open" in entry:
        status, note = "fail", entry["open"]
    elif not evidence:
        status, note = "not_measured", "no test carries it"
    elif id == _OF_DEFAULTS and not all(one["shipped"] for one in _defaults().values()):
        status, note = "partial", "not every default has its test"
    return {
        "tier": entry["tier"],
        "area": entry["area"],
        "spec": "0.2",
        "requirement": entry["demand"].replace("`", ""),
        "status": status,
        "note": note,
        "evidence": [f"{FOLDER}/{test}" for test in evidence],
    }


def tier_of(rows: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the highest tier that nothing blocks; what is unknown blocks."""
    blocked = [row["tier"] for row in rows.values() if row["status"] not in _FINE]
    return min(blocked, default=4) - 1


def _summary(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tier in (1, 2, 3):
        mine = [row["status"] for row in rows.values() if row["tier"] == tier]
        counts = {status: mine.count(status) for status in sorted(set(mine))}
        found[f"tier_{tier}"] = {"total": len(mine), **counts}
    return found


def _defaults() -> dict[str, Any]:
    tests = {test.partition("::")[2]: test for test in CARRIED.get(_OF_DEFAULTS, [])}
    return {
        name: {
            "shipped": test in tests,
            "overridable": test in tests,
            "evidence": f"{FOLDER}/{tests[test]}" if test in tests else "",
        }
        for name, test in _DEFAULTS.items()
    }


# YAML, as much of it as a report needs: every text in quotes, as JSON has them


def yaml(value: Any, depth: int = 0) -> str:
    """Return a mapping or a list in block style."""
    indent = "  " * depth
    lines: list[str] = []
    if isinstance(value, Mapping):
        for name, inner in value.items():
            lines.append(_entry(f"{indent}{name}:", inner, depth))
    else:
        for inner in value:
            if isinstance(inner, Mapping):
                block = yaml(inner, depth + 1)
                lines.append(f"{indent}- {block.lstrip()}")
            else:
                lines.append(f"{indent}- {_scalar(inner)}")
    return "\n".join(lines)


def _entry(head: str, value: Any, depth: int) -> str:
    if isinstance(value, Mapping | list) and value:
        return f"{head}\n{yaml(value, depth + 1)}"
    return f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# For people

_INTRODUCTION = """# Conformance of the command line

`dragoman` follows the a2a-cli specification v0.2, revision 2026-08-17. Tests cover each of its
requirements. They run the command as a process against a scripted agent, and check stdout, stderr,
the exit code and the requests that the agent got. `docs/cli_conformance.py` writes this page from
those tests. It also writes `docs/cli-conformance.yaml`, the report in the specification's format.

The version floor (A2ACLI_VER_001) is tested with `--strict-version`. Without that option, which is
the default, a command also talks to an agent that offers nothing from 1.0 on. It uses the newest
version that the agent has, and says so on stderr. `A2ACLI_STRICT_VERSION=true` sets the
specification's own rule.
"""


def page() -> str:
    """Return the report as a document."""
    found = report()
    head = found["report"]
    lines = [
        _INTRODUCTION,
        f"**Tier {head['tier_claimed']} is claimed**, for version {head['version']},"
        f" over {', '.join(head['transports_covered'])}.",
        "",
        "| tier | requirements | pass |",
        "| --- | --- | --- |",
    ]
    for tier in (1, 2, 3):
        counts = found["summary"][f"tier_{tier}"]
        lines.append(f"| {tier} | {counts['total']} | {counts.get('pass', 0)} |")
    for tier in (1, 2, 3):
        lines += ["", f"## Tier {tier}", "", "| id | requirement | status | tests |"]
        lines.append("| --- | --- | --- | --- |")
        for id, row in found["requirements"].items():
            if row["tier"] == tier:
                status = row["status"] + (f": {row['note']}" if row["note"] else "")
                demand = row["requirement"].replace("|", "\\|")
                lines.append(f"| {id} | {demand} | {status} | {len(row['evidence'])} |")
    return "\n".join(lines) + "\n"


def documents() -> dict[Path, str]:
    """Return what each file should hold."""
    return {REPORT: yaml(report()) + "\n", PAGE: page()}


def main() -> None:
    """Write the files anew."""
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
