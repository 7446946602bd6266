"""Files and structured data, in and out: what an argument is typed as decides what fills it.

    dragoman serve examples/files.py

Send a file as a part with `raw` (base64); or the data {"rows": [...]} with the metadata
{"skillId": "table"}.
"""

import csv
import hashlib
import io
from dataclasses import dataclass
from typing import Any

from dragoman import Agent, Part

agent = Agent("Files", "Takes files and data, and gives them back as others.")


@dataclass
class Report:
    """What is known of a file."""

    size: int
    sha256: str


@agent.skill(tags=["files"], default=True)
def inspect(file: bytes) -> Report:
    """Tells the size and the hash of a file."""
    return Report(len(file), hashlib.sha256(file).hexdigest())


@agent.skill(tags=["files"], output_modes=["text/csv"])
def table(rows: list[dict[str, Any]]) -> Part:
    """Makes a CSV file of rows."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    return Part(raw=out.getvalue().encode(), filename="table.csv", media_type="text/csv")
