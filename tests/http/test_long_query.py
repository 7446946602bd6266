"""A query beyond the limit of URLs costs nothing, also under another ASGI server."""

from typing import Any

import pytest

from dragoman.http import request as request_module
from dragoman.http.request import MAX_URL_BYTES, HttpRequest


def test_a_query_that_is_too_long_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def parse(text: str) -> dict[str, list[str]]:
        parsed.append(text)
        return {}

    monkeypatch.setattr(request_module, "parse_qs", parse)
    for size, times in ((MAX_URL_BYTES + 1, 0), (10, 1)):
        scope: dict[str, Any] = {
            "method": "GET",
            "path": "/",
            "headers": [],
            "query_string": b"A2A-Version=".ljust(size, b"1")[:size],
        }
        mount: Any = None
        found = HttpRequest.of(scope, None, None, mount, "/")  # type: ignore[arg-type]  # not read
        assert found.version == (None, None)
        assert len(parsed) == times
