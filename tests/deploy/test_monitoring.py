"""The dashboard and the alerts speak of metrics that we export, and a real Prometheus takes them.

Grafana itself is not run: its dashboard is read as JSON, and its expressions are asked of
Prometheus.
"""

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from harness.processes import ROOT, running
from harness.waiting import wait_until

from dragoman.telemetry import figures
from dragoman.telemetry.metrics import Counter, Gauge, Histogram
from tests.deploy.tools import DEPLOY, prepared, prometheus, said

RULES = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/dragoman.json").read_text())
NAME = re.compile(r"\b(?:dragoman|process)_[a-z_]+\b")


def exported() -> tuple[set[str], set[str]]:
    """Return the names of our metrics, and those of the series they make."""
    metrics = [
        one for one in vars(figures).values() if isinstance(one, Counter | Gauge | Histogram)
    ]
    names = {one.name for one in metrics}
    parts = {
        f"{one.name}_{part}"
        for one in metrics
        if isinstance(one, Histogram)
        for part in ("bucket", "sum", "count")
    }
    return names, parts | {one.name for one in metrics if not isinstance(one, Histogram)}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def expressions() -> list[str]:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_metric_that_is_asked_for_is_exported() -> None:
    _, series = exported()
    asked = [*expressions(), *(rule["expr"] for rule in alerts())]
    assert {name for text in asked for name in NAME.findall(text)} <= series


def test_every_metric_that_is_exported_is_shown() -> None:
    names, _ = exported()
    shown = {name.removesuffix("_bucket") for text in expressions() for name in NAME.findall(text)}
    assert names <= shown
    observing = (ROOT / "docs" / "observing.md").read_text(encoding="utf-8")
    assert names <= set(NAME.findall(observing))


def test_panels_are_apart_and_read_the_chosen_source() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"


def test_every_alert_says_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "action"}, rule["alert"]


@pytest.fixture(scope="module")
def tools() -> Path:
    found = prometheus()
    if found is None:
        pytest.skip("no prometheus on this machine, and none to be had from Debian")
    return found


def test_the_alerts_fire_when_they_should(tools: Path) -> None:
    said(tools / "promtool", "test", "rules", "alerts_test.yml", cwd=RULES.parent)


@contextmanager
def scraping(tools: Path, folder: Path, target: str) -> Iterator[httpx.Client]:
    """Run a Prometheus with our configuration, on a server of ours in the place of the replicas."""
    configuration = yaml.safe_load((RULES.parent / "prometheus.yml").read_text())
    configuration["global"]["scrape_interval"] = "1s"
    configuration["rule_files"] = [str(RULES)]
    (job,) = configuration["scrape_configs"]
    assert job["authorization"]["credentials_file"] == "/var/lib/metrics/token"
    job["authorization"]["credentials_file"] = str(folder / "token")
    job["static_configs"] = [{"targets": [target]}]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(tools / "prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            wait_until(lambda: is_ready(http))
            yield http
    finally:
        process.terminate()
        process.wait(60)


def is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_a_real_prometheus_reads_our_metrics_and_knows_every_expression(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prepared(tmp_path, monkeypatch)
    options = ("--listen", "127.0.0.1:0", "--store", tmp_path / "tasks.db")
    with running("gateway", *options, "--auth-tokens", tokens, cwd=tmp_path) as child:
        target = child.ready().removeprefix("http://")
        with scraping(tools, tmp_path, target) as http:

            def asked(expression: str) -> Any:
                answer = http.get("/api/v1/query", params={"query": expression}).json()
                assert answer["status"] == "success", answer
                return answer["data"]["result"]

            wait_until(lambda: bool(asked('dragoman_build_info{job="dragoman"}')))
            ((_, up),) = [one["value"] for one in asked('up{job="dragoman"}')]
            assert up == "1"
            for expression in expressions():
                filled = expression.replace("$job", "dragoman").replace("$__rate_interval", "1m")
                asked(filled)
            (group,) = http.get("/api/v1/rules").json()["data"]["groups"]
            assert {rule["name"] for rule in group["rules"]} == {rule["alert"] for rule in alerts()}
