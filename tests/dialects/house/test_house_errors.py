"""The table of errors in the houses, cell by cell."""

from typing import Any

import pytest

from dragoman import errors
from dragoman.dialects.house import NEXUS, r, selectools
from dragoman.dialects.house import errors as table
from dragoman.errors import A2AError

# NEXUS, R, R over REST, selectools, corvid.
CELLS: list[tuple[type[A2AError], int, int, int, int, int]] = [
    (errors.TaskNotFound, -32602, -32004, 404, -32001, 404),
    (errors.TaskNotCancelable, -32602, -32602, 409, -32002, 400),
    (errors.UnsupportedOperation, -32601, -32601, 501, -32601, 405),
    (errors.InvalidParams, -32602, -32602, 400, -32602, 400),
    (errors.VersionNotSupported, -32600, -32600, 400, -32600, 400),
    (errors.ExtensionRequired, -32602, -32602, 400, -32602, 400),
    (errors.InternalError, -32603, -32603, 500, -32603, 500),
    (errors.ParseFailed, -32700, -32700, 400, -32700, 400),
    (errors.InvalidRequest, -32600, -32600, 400, -32600, 400),
    (errors.MethodNotFound, -32601, -32601, 404, -32601, 404),
    (errors.PermissionDenied, -32603, -32603, 403, -32603, 403),
    (errors.RateLimited, -32603, -32603, 429, -32603, 429),
    (errors.Overloaded, -32603, -32603, 503, -32603, 503),
    (errors.NoAgentAvailable, -32602, -32602, 400, -32602, 404),
    (errors.InsufficientCredits, -32055, -32055, 402, -32055, 402),
    (errors.TrustTooLow, -32056, -32056, 403, -32056, 403),
    (errors.AgentOffline, -32057, -32057, 503, -32057, 503),
    (errors.HopLimit, -32058, -32058, 400, -32058, 400),
]


@pytest.mark.parametrize("cells", CELLS, ids=lambda cells: cells[0].__name__)
def test_an_error_is_called_as_the_table_says(cells: tuple[Any, ...]) -> None:
    """N-11, R-18, R-22, S-14, C-17: with words of ours, and nothing more than they say."""
    kind, nexus, rx, rx_http, sel, corvid = cells
    error = kind("Something specific")
    found = [dialect.encode_error(error) for dialect in (NEXUS, r.RX, selectools.SELECTOOLS)]
    assert [said["code"] for said in found] == [nexus, rx, sel]
    assert all("Something specific" in said["message"] for said in found)
    status, body = table.rx_rest(error)
    assert (status, body["error"]["code"]) == (rx_http, rx_http)
    status, body = table.corvid(error)
    assert status == corvid and body.keys() == {"error"}


def test_an_unknown_method_is_named_to_nexus_and_a_reason_given_to_r() -> None:
    """N-11, R-7, R-8, R-9: where each looks for it."""
    unknown = errors.MethodNotFound(method="a/b")
    assert table.nexus(unknown)["message"] == "Method not found: a/b"
    assert table.rx(unknown)["data"] == {"method": "a/b"}
    wrong = errors.InvalidParams("is required", field="message")
    assert table.rx(wrong)["data"]["reason"] == "message: is required"
    assert table.rx(errors.InternalError(incident="i"))["data"] == {
        "incident": "i",
        "error": "Internal error",
    }
