"""Completion scripts: each shell takes its own, and they know the commands as they are."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import inside

CHECKS = {
    "bash": ("bash", "-n"),
    "zsh": ("zsh", "-n"),
    "fish": ("fish", "--no-execute"),
    "powershell": ("pwsh", "-NoProfile", "-File"),
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("scripts")
    found: dict[str, Path] = {}
    for shell in CHECKS:
        ended = inside("completion", shell, cwd=folder)
        assert ended.returncode == 0 and not ended.stderr, ended.stderr
        found[shell] = folder / f"completion.{'ps1' if shell == 'powershell' else shell}"
        found[shell].write_text(ended.stdout)
    return found


@pytest.mark.parametrize("shell", CHECKS)
def test_a_shell_takes_its_script(scripts: dict[str, Path], shell: str) -> None:
    text = scripts[shell].read_text()
    assert "push-config" in text and "--agent-card" in text and "--watch" not in text
    if shutil.which(CHECKS[shell][0]) is None:
        pytest.skip(f"there is no {CHECKS[shell][0]} here")
    subprocess.run([*CHECKS[shell], scripts[shell]], check=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("dragoman ta", "task"),
        ("dragoman task push-config cr", "create"),
        ("dragoman -a x task get --hi", "--history"),
        ("dragoman send -o j", "json"),
        ("dragoman completion ''", "zsh"),
        ("dragoman help ta", "task"),
        ("dragoman help task su", "subscribe"),
        ("dragoman task list --status inp", "input-required"),
        ("dragoman tasks tail --status ''", "working"),
        ("dragoman task get --until ''", "terminal"),
        ("dragoman send --transport r", "rest"),
        ("dragoman serve --transport g", "grpc"),
    ],
)
def test_bash_completes_commands_flags_and_values(
    scripts: dict[str, Path], words: str, found: str
) -> None:
    typed = words.split()
    code = (
        f"source {scripts['bash']}; COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; "
        '_dragoman; echo "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == [] if not found else found in ended.stdout.split(), ended.stderr


def test_flags_are_offered_where_nothing_else_is_or_where_one_was_begun(
    scripts: dict[str, Path],
) -> None:
    code = (
        f"source {scripts['bash']}; COMP_WORDS=(dragoman completion ''); COMP_CWORD=2; "
        '_dragoman; echo "${COMPREPLY[@]}"; COMP_WORDS=(dragoman completion --de); _dragoman; '
        'echo "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines() == ["bash zsh fish powershell", "--debug"], ended.stderr


def test_a_shell_nobody_knows_is_a_usage_error(tmp_path: Path) -> None:
    ended = inside("completion", "tcsh", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
