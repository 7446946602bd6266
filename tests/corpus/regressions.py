"""Cases that once failed, as files: the request and the answers it may get.

A body that is text is kept as text, so that the file can be read; any other is base64.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from tests.corpus.case import Case, Expect

FOLDER = Path(__file__).parent.parent / "regressions"


def load(folder: Path = FOLDER) -> list[Case]:
    """Return every kept case, in the order of the file names."""
    return [_decode(json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))]


def save(folder: Path, case: Case) -> Path:
    """Write a case under a name made of its own."""
    name = re.sub(r"[^a-zA-Z0-9]+", "-", case.name).strip("-").lower()[:100]
    # Names are cut, so two cases could share one; the request tells them apart.
    digest = hashlib.sha256(repr(case.fingerprint).encode()).hexdigest()[:8]
    path = folder / f"{name}-{digest}.json"
    path.write_text(json.dumps(_encode(case), indent=2, ensure_ascii=True) + "\n", "utf-8")
    return path


def _encode(case: Case) -> dict[str, Any]:
    request: dict[str, Any] = {
        "binding": case.binding,
        "method": case.method,
        "path": case.path,
        "query": case.query,
        "headers": dict(case.headers),
    }
    try:
        request["body"] = case.body.decode("utf-8")
    except UnicodeDecodeError:
        request["bodyBase64"] = base64.b64encode(case.body).decode()
    expect = case.expect
    return {
        "category": case.category,
        "kind": case.kind,
        "detail": case.detail,
        "request": request,
        "expect": {
            "codes": sorted(expect.codes),
            "ids": list(expect.ids),
            "fields": list(expect.fields),
            "modern": expect.modern,
            "accepted": expect.accepted,
            "statuses": sorted(expect.statuses),
        },
    }


def _decode(value: dict[str, Any]) -> Case:
    request, expect = value["request"], value["expect"]
    if "bodyBase64" in request:
        body = base64.b64decode(request["bodyBase64"])
    else:
        body = request["body"].encode("utf-8")
    return Case(
        value["category"],
        value["kind"],
        value["detail"],
        request["binding"],
        request["method"],
        request["path"],
        tuple(request["headers"].items()),
        body,
        Expect(
            frozenset(expect["codes"]),
            tuple(expect["ids"]),
            tuple(expect["fields"]),
            expect["modern"],
            expect["accepted"],
            frozenset(expect["statuses"]),
        ),
        request["query"],
    )
