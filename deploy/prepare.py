"""Write the tokens of compose.yaml: for operators, and for Prometheus, which reads metrics.

The gateway takes its file only if no one else can read it. Prometheus runs as another user and has
a file of its own.
"""

import os
from pathlib import Path

TOKENS = """[operator]
token = "{operator}"
scopes = ["dragoman:operator"]

[prometheus]
token = "{metrics}"
scopes = ["dragoman:operator"]
"""


def write(path: Path, text: str, mode: int) -> None:
    """Replace a file as a whole, so that no reader sees half of it."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        file.write(text)
    new.replace(path)


def main(state: Path, metrics: Path) -> None:
    """Write both files from the environment."""
    operator, token = os.environ["OPERATOR_TOKEN"], os.environ["METRICS_TOKEN"]
    write(state / "tokens.toml", TOKENS.format(operator=operator, metrics=token), 0o600)
    os.umask(0)
    write(metrics / "token", token, 0o444)


if __name__ == "__main__":
    main(Path("/var/lib/dragoman"), Path("/var/lib/metrics"))
