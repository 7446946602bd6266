"""Finds the recording of a request, and the differences of two answers.

Ids and times differ from run to run, so they are ignored unless the match is strict. Of several
matching recordings those with equal ids come first, each in its turn.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET

from dragoman.testing.cassettes.cassette import RecordedExchange, RecordedRequest

Match = Literal["strict", "loose"]
ANY = "*"
# Members that may differ between equal requests; the first differ in every request.
_OF_REQUESTS = frozenset({"messageId", "timestamp", "statusTimestampAfter"})
_IDS = frozenset(
    {
        "id",
        "taskId",
        "contextId",
        "artifactId",
        "referenceTaskIds",
        "pushNotificationConfigId",
        "name",
        "parent",
        "pageToken",
        "nextPageToken",
    }
)
_TASK_PATH = re.compile(r"(?<=/tasks/)[^/:?]+(?P<config>(?<=.)/pushNotificationConfigs/[^/:?]+)?")
_NAME_IDS = ("name", "parent")


def plain(value: Any, *, ignore_ids: bool) -> Any:
    """Return JSON without members that are ignored."""
    if isinstance(value, list):
        return [plain(item, ignore_ids=ignore_ids) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, item in cast(dict[str, Any], value).items():
        counts = name not in _OF_REQUESTS
        if ignore_ids and counts and name in _IDS:
            # Names of agents and files are not ids; names in 0.3 begin with their kind.
            is_name = name in _NAME_IDS and not str(item).startswith("tasks/")
            counts = is_name or not isinstance(item, str | list)
        found[name] = plain(item, ignore_ids=ignore_ids) if counts else ANY
    return found


def key(request: RecordedRequest, match: Match, *, ignore_ids: bool) -> bytes:
    """Return a key that equal requests share."""
    body: Any = request.body.json
    path, query = request.path, request.query
    if body is UNSET:
        body = request.body.text or request.body.raw.hex()
    elif isinstance(body, dict) and "jsonrpc" in body:
        # Request numbers differ from run to run.
        body = cast(dict[str, Any], body) | {"id": ANY}
    if match == "loose":
        body = plain(body, ignore_ids=ignore_ids)
        if ignore_ids:
            path = _TASK_PATH.sub(_starred, path)
            query = ""
    version = request.headers.get("a2a-version", "")
    return msgspec.json.encode([request.method, path, query, version, body], order="deterministic")


def _starred(found: re.Match[str]) -> str:
    return f"{ANY}/pushNotificationConfigs/{ANY}" if found["config"] else ANY


class ExchangeIndex:
    """Finds the recording of a request."""

    def __init__(self, exchanges: Iterable[RecordedExchange], match: Match) -> None:
        self._match: Match = match
        self._exact: defaultdict[bytes, list[RecordedExchange]] = defaultdict(list)
        self._near: defaultdict[bytes, list[RecordedExchange]] = defaultdict(list)
        self._used: set[int] = set()
        for exchange in exchanges:
            self._exact[key(exchange.request, match, ignore_ids=False)].append(exchange)
            if match == "loose":
                self._near[key(exchange.request, match, ignore_ids=True)].append(exchange)

    def find(self, request: RecordedRequest) -> RecordedExchange | None:
        """Return the next recording of a request; in a loose match the last one is reused."""
        exact = self._exact[key(request, self._match, ignore_ids=False)]
        near: list[RecordedExchange] = []
        if self._match == "loose":
            near = self._near[key(request, self._match, ignore_ids=True)]
        for pool in (exact, near):
            for exchange in pool:
                if exchange.number not in self._used:
                    self._used.add(exchange.number)
                    return exchange
            if pool and self._match == "loose":
                return pool[-1]
        return None

    @property
    def unused(self) -> int:
        """How many recordings were not requested."""
        return sum(map(len, self._exact.values())) - len(self._used)


def differences(recorded: Any, live: Any, at: str = "") -> list[tuple[str, Any, Any]]:
    """Return the differences of two values: path, recorded value, live value."""
    if isinstance(recorded, dict) and isinstance(live, dict):
        before, after = cast(dict[str, Any], recorded), cast(dict[str, Any], live)
        found: list[tuple[str, Any, Any]] = []
        for name in dict.fromkeys([*before, *after]):
            path = f"{at}.{name}" if at else name
            found += differences(before.get(name, UNSET), after.get(name, UNSET), path)
        return found
    if isinstance(recorded, list) and isinstance(live, list):
        old, new = cast(list[Any], recorded), cast(list[Any], live)
        found = []
        for i in range(max(len(old), len(new))):
            found += differences(
                old[i] if i < len(old) else UNSET, new[i] if i < len(new) else UNSET, f"{at}[{i}]"
            )
        return found
    return [] if recorded == live else [(at, recorded, live)]
