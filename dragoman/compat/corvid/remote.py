"""Calls other agents as corvid does: a card is cached for five minutes, and a task is polled every
three seconds until it ends.

Only public addresses are called, unless `allow_private=True` or, for all calls,
`DRAGOMAN_ALLOW_PRIVATE` in the environment allows others.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

import msgspec

from dragoman.compat.corvid.records import (
    ExternalServiceError,
    RemoteInvocationResult,
    ValidationError,
)
from dragoman.config import PREFIX, load_settings
from dragoman.dialects.cards import CARD_PATH
from dragoman.dialects.house.corvid import DEFAULT_TIMEOUT, SEND_PATH, TASK_PATH
from dragoman.egress.answers import EgressResponse
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError, EgressRefused
from dragoman.egress.targets import Address, Anywhere, Policy, Target
from dragoman.errors import ParseFailed
from dragoman.model.clock import Clock, SystemClock
from dragoman.transports import json_text

logger = logging.getLogger(__name__)

CARD_KEPT_MS = 5 * 60 * 1000
POLL_EVERY_MS = 3000
_CARD_SECONDS, _SUBMIT_SECONDS, _POLL_SECONDS = 10.0, 30.0, 10.0
_MAX_TASK_BYTES = 4 * 1024 * 1024
_HINT = "allow_private=True, or DRAGOMAN_ALLOW_PRIVATE=1 in the environment, allows it"
_ALLOW = f"{PREFIX}ALLOW_PRIVATE"
_HEADERS = {"accept": "application/json", "user-agent": "dragoman-corvid"}

Json = dict[str, Any]


class _Text(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    """A message of a task, as far as it is used."""

    role: str = ""
    parts: list[_Text] = []


class Public(Policy):
    """Allows every public address over http and https, at any port."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        super().__init__(allow=allow, allow_private=False, ports=())

    def refusal(self, target: Target) -> str:
        if self._lists(target):
            return ""
        if target.address is not None:
            return self.refusal_of(target.address, target)
        is_private = self._is_private_name(target.host)
        return f"{target.host} is not public; {_HINT}" if is_private else ""

    def refusal_of(self, address: Address, target: Target) -> str:
        if not super().refusal_of(address, target):
            return ""
        # Without the hint of the base class: no command line is involved.
        return f"{target.host} is at {address}, which is not public; {_HINT}"


class RemoteAgents:
    """Finds and calls agents; caches their cards."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        allow: Sequence[str] = (),
        allow_private: bool | None = None,
        depth: int = 0,
        source_agent: str = "",
    ) -> None:
        """`depth` is how often the present task was passed on already: it is sent with one more,
        and an agent may refuse a task in a loop. `allow_private` says whether agents on this
        machine and in private networks are called; None: the environment decides."""
        self._clock = clock or SystemClock()
        self._public, self._allows = Public(allow), allow_private
        self._depth = depth
        self._source = source_agent
        self._cards: dict[str, tuple[int, Json]] = {}

    # Cards

    async def fetch_agent_card(self, base_url: str, *, allow_private: bool | None = None) -> Json:
        """Return an agent's card, at most five minutes old. Raises `ExternalServiceError` if there
        is none, `ValidationError` for one without name or version and for an address that may not
        be called."""
        url = base_url.rstrip("/") + CARD_PATH
        self._drop_stale()
        if url in self._cards:
            return self._cards[url][1]
        async with self._egress(allow_private) as egress:
            try:
                answer = await egress.get(url, headers=_HEADERS, timeout=_CARD_SECONDS, redirects=3)
            except EgressRefused as error:
                raise ValidationError(f"{base_url} is not called: {error.reason}") from None
            except (EgressError, TimeoutError) as error:
                reason = getattr(error, "reason", "no answer in time")
                raise ExternalServiceError("A2A", f"No agent card from {url}: {reason}") from None
        if not 200 <= answer.status < 300:
            raise ExternalServiceError(
                "A2A", f"No agent card from {url}: HTTP {answer.status}", answer.status
            )
        card = _object(answer.body)
        if card is None or not card.get("name") or not card.get("version"):
            raise ValidationError(f"The agent card of {url} has no name or no version")
        self._cards[url] = (self._clock.now(), card)
        return card

    async def discover_agent(
        self, base_url: str, *, allow_private: bool | None = None
    ) -> Json | None:
        """Return an agent's card; None: it cannot be read."""
        try:
            return await self.fetch_agent_card(base_url, allow_private=allow_private)
        except Exception as error:
            # The result says that there is no agent; why an address is not called is logged.
            level = logging.WARNING if isinstance(error, ValidationError) else logging.DEBUG
            logger.log(level, "no agent at %s: %s", base_url, error)
            return None

    def clear_agent_card_cache(self) -> None:
        """Drop all cached cards."""
        self._cards.clear()

    @property
    def cached_cards(self) -> int:
        """How many cards are cached."""
        return len(self._cards)

    def _drop_stale(self) -> None:
        now = self._clock.now()
        for url, (at, _) in list(self._cards.items()):
            if now - at > CARD_KEPT_MS:
                del self._cards[url]

    # Tasks

    async def invoke_remote_agent(
        self,
        base_url: str,
        message: str,
        *,
        skill: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT,
        allow_private: bool | None = None,
    ) -> RemoteInvocationResult:
        """Give an agent a task and return its result, or why there is none: the agent is
        unreachable, refuses it, takes too long, or its address may not be called."""
        base = base_url.rstrip("/")
        params: Json = {"message": message, "timeoutMs": timeout_ms, "depth": self._depth + 1}
        if skill is not None:
            params["skill"] = skill
        if self._source:
            params["sourceAgent"] = self._source
        body = msgspec.json.encode({"method": "tasks/send", "params": params})
        headers = _HEADERS | {"content-type": "application/json"}
        deadline = self._clock.now() + timeout_ms
        async with self._egress(allow_private) as egress:
            try:
                answer = await egress.post(
                    base + SEND_PATH,
                    body,
                    headers,
                    timeout=_SUBMIT_SECONDS,
                    max_answer=_MAX_TASK_BYTES,
                )
            except EgressRefused as error:
                return _failed("", f"Submit failed: {base_url} is not called: {error.reason}")
            except (EgressError, TimeoutError) as error:
                reason = getattr(error, "reason", "no answer in time")
                return _failed("", f"Submit failed: {reason}")
            if not 200 <= answer.status < 300:
                return _failed("", f"Submit failed: HTTP {answer.status} {_text(answer)}")
            task = _object(answer.body) or {}
            task_id = task.get("id")
            if not isinstance(task_id, str) or not task_id:
                return _failed("", "Submit failed: the answer names no task")
            return await self._wait_for_end(egress, base, task_id, deadline, timeout_ms)

    async def _wait_for_end(
        self, egress: Egress, base: str, task_id: str, deadline: int, timeout_ms: int
    ) -> RemoteInvocationResult:
        url = base + TASK_PATH + quote(task_id, safe="")
        while True:
            try:
                answer = await egress.get(
                    url, headers=_HEADERS, timeout=_POLL_SECONDS, max_answer=_MAX_TASK_BYTES
                )
            except (EgressError, TimeoutError) as error:
                # The next poll may succeed.
                logger.debug("%s was not read: %s", url, error)
            else:
                task = _object(answer.body) if 200 <= answer.status < 300 else None
                if task is not None and task.get("state") in ("completed", "failed"):
                    return _result(task_id, task)
            if self._clock.now() >= deadline:
                return _failed(task_id, f"Timed out after {timeout_ms}ms")
            await self._clock.wait_until(min(self._clock.now() + POLL_EVERY_MS, deadline))

    def _egress(self, allow_private: bool | None) -> Egress:
        allows = self._allows if allow_private is None else allow_private
        if allows is None:
            # Only this setting: the others are for servers, and may be invalid.
            is_set = _ALLOW in os.environ
            environment = {_ALLOW: os.environ[_ALLOW]} if is_set else {}
            allows = load_settings(environment).egress.allow_private
        return Egress(policy=Anywhere() if allows else self._public, keep_alive=True)


def _result(task_id: str, task: Json) -> RemoteInvocationResult:
    text = _last_text(task)
    if task["state"] == "completed":
        return RemoteInvocationResult(True, task_id, text, None)
    return RemoteInvocationResult(False, task_id, text, text or "Task failed")


def _last_text(task: Json) -> str | None:
    """Return the first text of the agent's last message."""
    try:
        messages = msgspec.convert(task.get("messages") or [], list[_Message])
    except msgspec.ValidationError:
        return None
    last = next((one for one in reversed(messages) if one.role == "agent"), None)
    return last.parts[0].text if last is not None and last.parts else None


def _failed(task_id: str, error: str) -> RemoteInvocationResult:
    return RemoteInvocationResult(False, task_id, None, error)


def _object(body: bytes) -> Json | None:
    """Return a JSON object; None: it is something else."""
    try:
        value = json_text.parse(body)
    except ParseFailed:
        return None
    return cast(Json, value) if isinstance(value, dict) else None


def _text(answer: EgressResponse) -> str:
    return answer.body[:500].decode("utf-8", "replace")


# corvid's functions: the methods of one instance for the whole process.
_agents = RemoteAgents()
fetch_agent_card = _agents.fetch_agent_card
discover_agent = _agents.discover_agent
clear_agent_card_cache = _agents.clear_agent_card_cache
invoke_remote_agent = _agents.invoke_remote_agent
