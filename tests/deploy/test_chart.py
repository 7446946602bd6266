"""The Helm chart renders to manifests that Kubernetes takes, with the promises its values make.

It is rendered by a real Helm and checked against the schemas of Kubernetes. No cluster runs it.
"""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import dragoman
from dragoman.cli.main import cli
from dragoman.config import FIELDS, IN_FILES
from tests.deploy.tools import DEPLOY, checker, said

CHART = DEPLOY / "helm" / "dragoman"
SECRETS = "secret.values.store=postgresql://a,secret.values.storeKey=k,secret.values.tokens=t"
EVERYTHING = (
    f"{SECRETS},ingress.enabled=true,ingress.host=a.example.com,ingress.tlsSecret=tls,"
    "ingress.className=nginx,autoscaling.maxReplicas=5,publicUrl=https://a.example.com"
)


def rendered(values: str) -> dict[str, dict[str, Any]]:
    """Return the manifests of a release, by kind."""
    text = said(checker("helm"), "template", "a2a", CHART, "--set", values)
    return {one["kind"]: one for one in yaml.safe_load_all(text) if one}


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    return rendered(EVERYTHING)


def test_the_chart_is_of_this_release_and_helm_has_nothing_to_say() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["appVersion"] == about["version"] == dragoman.__version__
    said(checker("helm"), "lint", "--strict", CHART, "--set", "secret.existing=s")


def test_kubernetes_takes_the_manifests(tmp_path: Path) -> None:
    file = tmp_path / "manifests.yaml"
    file.write_text(said(checker("helm"), "template", "a2a", CHART, "--set", EVERYTHING))
    said(checker("kubernetes-validate"), "--strict", file)


def test_pods_are_spared_and_spread_and_may_do_little(manifests: dict[str, Any]) -> None:
    assert manifests["PodDisruptionBudget"]["spec"]["minAvailable"] == 1
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    for container in (*pod["containers"], *pod["initContainers"]):
        rights = container["securityContext"]
        assert rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
    (container,) = pod["containers"]
    probes = {
        name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")
    }
    assert probes == {"liveness": "/healthz", "readiness": "/readyz"}
    assert "replicas" not in manifests["Deployment"]["spec"], "the autoscaler counts them"
    drain = next(one for one in container["env"] if one["name"] == "DRAGOMAN_DRAIN")
    assert pod["terminationGracePeriodSeconds"] > int(drain["value"])


def test_the_command_and_the_settings_of_a_pod_exist(manifests: dict[str, Any]) -> None:
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    name, *words = container["args"]
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None
    command.make_context(name, words, parent=context, resilient_parsing=True)
    known = {*FIELDS, *(f"{one}_file" for one in IN_FILES)}
    assert {one["name"].removeprefix("DRAGOMAN_").lower() for one in container["env"]} <= known


def test_no_secret_is_in_a_pod_and_a_release_without_one_is_refused(
    manifests: dict[str, Any],
) -> None:
    assert manifests["Secret"]["stringData"].keys() == {"store", "store-key", "tokens.toml"}
    assert "postgresql://" not in str(manifests["Deployment"])
    assert "Secret" not in rendered("secret.existing=mine")
    with pytest.raises(AssertionError, match=re.escape("secret.existing")):
        rendered("replicas=3")
