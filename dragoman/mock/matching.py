"""When is a request the one that was recorded? And when do two answers say the same?

Ids and times differ from run to run, so unless told to be strict they do not count. Where several
recordings fit, those whose ids fit as well come first, each in its turn.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET

from dragoman.mock.cassette import Asked, Exchange

Match = Literal["strict", "loose"]
ANY = "*"
# Members that differ although the same is meant; the first differ in every request.
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
    """Return JSON without what does not count."""
    if isinstance(value, list):
        return [plain(item, ignore_ids=ignore_ids) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for name, item in cast(dict[str, Any], value).items():
        counts = name not in _OF_REQUESTS
        if ignore_ids and counts and name in _IDS:
            # The names of agents and files are no ids; those of 0.3 have their kind before them.
            is_name = name in _NAME_IDS and not str(item).startswith("tasks/")
            counts = is_name or not isinstance(item, str | list)
        found[name] = plain(item, ignore_ids=ignore_ids) if counts else ANY
    return found


def key(asked: Asked, match: Match, *, ignore_ids: bool) -> bytes:
    """Return what two requests have in common that are the same."""
    body: Any = asked.body.json
    path, query = asked.path, asked.query
    if body is UNSET:
        body = asked.body.text or asked.body.raw.hex()
    elif isinstance(body, dict) and "jsonrpc" in body:
        # Who counts requests counts them anew.
        body = cast(dict[str, Any], body) | {"id": ANY}
    if match == "loose":
        body = plain(body, ignore_ids=ignore_ids)
        if ignore_ids:
            path = _TASK_PATH.sub(_starred, path)
            query = ""
    version = asked.headers.get("a2a-version", "")
    return msgspec.json.encode([asked.method, path, query, version, body], order="deterministic")


def _starred(found: re.Match[str]) -> str:
    return f"{ANY}/pushNotificationConfigs/{ANY}" if found["config"] else ANY


class Index:
    """Finds the recording of a request."""

    def __init__(self, exchanges: Iterable[Exchange], match: Match) -> None:
        self._match: Match = match
        self._exact: defaultdict[bytes, list[Exchange]] = defaultdict(list)
        self._near: defaultdict[bytes, list[Exchange]] = defaultdict(list)
        self._used: set[int] = set()
        for exchange in exchanges:
            self._exact[key(exchange.request, match, ignore_ids=False)].append(exchange)
            if match == "loose":
                self._near[key(exchange.request, match, ignore_ids=True)].append(exchange)

    def find(self, asked: Asked) -> Exchange | None:
        """Return the next recording of a request; loosely, the last one stays."""
        exact = self._exact[key(asked, self._match, ignore_ids=False)]
        near: list[Exchange] = []
        if self._match == "loose":
            near = self._near[key(asked, self._match, ignore_ids=True)]
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
        """How many recordings nobody has asked for."""
        return sum(map(len, self._exact.values())) - len(self._used)


def differences(recorded: Any, live: Any, at: str = "") -> list[tuple[str, Any, Any]]:
    """Return where two values differ: the place, what was recorded, and what came."""
    if isinstance(recorded, dict) and isinstance(live, dict):
        before, after = cast(dict[str, Any], recorded), cast(dict[str, Any], live)
        found: list[tuple[str, Any, Any]] = []
        for name in dict.fromkeys([*before, *after]):
            place = f"{at}.{name}" if at else name
            found += differences(before.get(name, UNSET), after.get(name, UNSET), place)
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
