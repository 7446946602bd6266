"""One request of the corpus and the answers it may get.

A case is plain bytes, so that the same case runs in process, over a socket and from a regression
file. The expectation is written in JSON-RPC codes; REST status and reason follow from the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

PARSE = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
TASK_NOT_FOUND = -32001
NOT_CANCELABLE = -32002
PUSH_UNSUPPORTED = -32003
UNSUPPORTED = -32004
CONTENT_TYPE = -32005
NO_EXTENDED_CARD = -32007
VERSION = -32009

# A legal id that no store holds: a request that names it creates nothing even when accepted.
UNKNOWN = "no-such-task"

V1 = {"a2a-version": "1.0"}


@dataclass(frozen=True, slots=True)
class Expect:
    """The set of defensible answers to one case."""

    codes: frozenset[int]
    # JSON-RPC ids that may be echoed; type counts, so 1 and true differ.
    ids: tuple[Any, ...] = (None,)
    # One of these must be named in BadRequest.fieldViolations, exactly or by a deeper path.
    fields: tuple[str, ...] = ()
    # True: 1.0 error details are due. False: a 0.x session, which must not see them. None: open.
    modern: bool | None = None
    # A success is as good as a refusal; only for requests that cannot create anything.
    accepted: bool = False
    # REST statuses where the error table does not decide (413, 414).
    statuses: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Case:
    """A request, named by the rule it breaks."""

    category: int
    kind: str
    detail: str
    binding: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    expect: Expect
    query: str = ""

    @property
    def name(self) -> str:
        return f"{self.category:02d}/{self.kind}/{self.detail}"

    @property
    def fingerprint(self) -> tuple[Any, ...]:
        return (self.method, self.path, self.query, self.headers, self.body)

    def __str__(self) -> str:
        target = self.path + ("?" + self.query if self.query else "")
        extra = {k: v for k, v in self.headers if k not in ("content-type", "accept")}
        return f"{self.name}: {self.method} {target[:300]} {extra} {self.body[:400]!r}"


def text(value: Any) -> bytes:
    """Return the compact JSON text of a value."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def rpc(
    category: int,
    kind: str,
    detail: str,
    body: bytes,
    expect: Expect,
    *,
    headers: dict[str, str] | None = None,
    path: str = "/",
    query: str = "",
) -> Case:
    """Return a case on the JSON-RPC endpoint."""
    fixed = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    fixed.update(headers or {})
    return Case(
        category, kind, detail, "jsonrpc", "POST", path, tuple(fixed.items()), body, expect, query
    )


def rest(
    category: int,
    kind: str,
    detail: str,
    method: str,
    path: str,
    expect: Expect,
    *,
    body: bytes = b"",
    query: str = "",
    headers: dict[str, str] | None = None,
) -> Case:
    """Return a case on the 1.0 REST paths."""
    fixed = {"accept": "application/json, text/event-stream", **V1}
    if body:
        fixed["content-type"] = "application/json"
    fixed.update(headers or {})
    return Case(
        category, kind, detail, "rest", method, path, tuple(fixed.items()), body, expect, query
    )


def words(line: str) -> list[str]:
    """Return the words of a line; lists of odd words read better without quotes."""
    return line.split(" ")


def codes(*values: int, **more: Any) -> Expect:
    return Expect(frozenset(values), **more)


def call(method: str, params: Any, call_id: Any = 7, **extra: Any) -> dict[str, Any]:
    """Return a JSON-RPC request object."""
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params, **extra}


def distinct(cases: Iterable[Case]) -> list[Case]:
    """Drop cases whose request was already made, and number the names that still collide."""
    seen: set[tuple[Any, ...]] = set()
    names: dict[str, int] = {}
    kept: list[Case] = []
    for case in cases:
        if case.fingerprint in seen:
            continue
        seen.add(case.fingerprint)
        count = names[case.name] = names.get(case.name, 0) + 1
        kept.append(case if count == 1 else replace(case, detail=f"{case.detail}#{count}"))
    return kept
