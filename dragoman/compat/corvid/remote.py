"""Other agents, as corvid calls them: a card that is kept for five minutes, and a task that is
read again every three seconds until it has ended.

Only public addresses are called, unless more is allowed: with `allow_private=True`, or for all
calls with `DRAGOMAN_ALLOW_PRIVATE` in the environment.
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
from dragoman.config import PREFIX, load
from dragoman.dialects.house.corvid import DEFAULT_TIMEOUT, SEND_PATH, TASK_PATH
from dragoman.errors import ParseFailed
from dragoman.model.clock import Clock, SystemClock
from dragoman.security.egress import Answer, Egress, EgressError, EgressRefused
from dragoman.security.targets import Address, Anywhere, Policy, Target
from dragoman.transports import json_text

logger = logging.getLogger(__name__)

CARD_PATH = "/.well-known/agent-card.json"
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


class _Said(msgspec.Struct):
    """A message of a task, as far as it is read."""

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
        # In words of our own: there is no option of a command here.
        return f"{target.host} is at {address}, which is not public; {_HINT}"


class RemoteAgents:
    """Finds and calls agents; keeps their cards."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        allow: Sequence[str] = (),
        allow_private: bool | None = None,
        depth: int = 0,
        source_agent: str = "",
    ) -> None:
        """`depth` is how often the task at hand was passed on before it came to us: what we send
        has been once more, and an agent may refuse what goes in circles. `allow_private` says
        whether agents on this machine and in private networks are called; None: as the environment
        says."""
        self._clock = clock or SystemClock()
        self._public, self._allows = Public(allow), allow_private
        self._depth = depth
        self._source = source_agent
        self._cards: dict[str, tuple[int, Json]] = {}

    # Cards

    async def fetch_agent_card(self, base_url: str, *, allow_private: bool | None = None) -> Json:
        """Return an agent's card, as it was not more than five minutes ago."""
        url = base_url.rstrip("/") + CARD_PATH
        self._forget_stale()
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
        """Return an agent's card; None: there is none to be had."""
        try:
            return await self.fetch_agent_card(base_url, allow_private=allow_private)
        except Exception as error:
            # Whatever it was: whoever only looks wants to know that there is nothing. Of an address
            # that is not called nobody else would tell them.
            level = logging.WARNING if isinstance(error, ValidationError) else logging.DEBUG
            logger.log(level, "no agent at %s: %s", base_url, error)
            return None

    def clear_agent_card_cache(self) -> None:
        """Forget all cards."""
        self._cards.clear()

    @property
    def kept_cards(self) -> int:
        """How many cards are kept."""
        return len(self._cards)

    def _forget_stale(self) -> None:
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
        """Give an agent a task and return what came of it, or why nothing did: it is out of reach,
        refuses it, takes too long, or its address is not called."""
        base = base_url.rstrip("/")
        params: Json = {"message": message, "timeoutMs": timeout_ms, "depth": self._depth + 1}
        if skill is not None:
            params["skill"] = skill
        if self._source:
            params["sourceAgent"] = self._source
        body = msgspec.json.encode({"method": "tasks/send", "params": params})
        sent = _HEADERS | {"content-type": "application/json"}
        deadline = self._clock.now() + timeout_ms
        async with self._egress(allow_private) as egress:
            try:
                answer = await egress.post(
                    base + SEND_PATH,
                    body,
                    sent,
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
            return await self._ended(egress, base, task_id, deadline, timeout_ms)

    async def _ended(
        self, egress: Egress, base: str, task_id: str, deadline: int, timeout_ms: int
    ) -> RemoteInvocationResult:
        url = base + TASK_PATH + quote(task_id, safe="")
        while True:
            try:
                answer = await egress.get(
                    url, headers=_HEADERS, timeout=_POLL_SECONDS, max_answer=_MAX_TASK_BYTES
                )
            except (EgressError, TimeoutError) as error:
                # It may be back the next time.
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
            # Alone: what else is set is for servers, and may be wrong.
            is_set = _ALLOW in os.environ
            allows = load({_ALLOW: os.environ[_ALLOW]} if is_set else {}).allow_private
        return Egress(policy=Anywhere() if allows else self._public, keep_alive=True)


def _result(task_id: str, task: Json) -> RemoteInvocationResult:
    text = _last_word(task)
    if task["state"] == "completed":
        return RemoteInvocationResult(True, task_id, text, None)
    return RemoteInvocationResult(False, task_id, text, text or "Task failed")


def _last_word(task: Json) -> str | None:
    """Return what the agent said last: the first part of its last message."""
    try:
        said = msgspec.convert(task.get("messages") or [], list[_Said])
    except msgspec.ValidationError:
        return None
    last = next((one for one in reversed(said) if one.role == "agent"), None)
    return last.parts[0].text if last is not None and last.parts else None


def _failed(task_id: str, error: str) -> RemoteInvocationResult:
    return RemoteInvocationResult(False, task_id, None, error)


def _object(body: bytes) -> Json | None:
    """Return a JSON object; None: it is none."""
    try:
        value = json_text.parse(body)
    except ParseFailed:
        return None
    return cast(Json, value) if isinstance(value, dict) else None


def _text(answer: Answer) -> str:
    return answer.body[:500].decode("utf-8", "replace")


_agents = RemoteAgents()


async def fetch_agent_card(base_url: str, *, allow_private: bool | None = None) -> Json:
    """Return an agent's card, as it was not more than five minutes ago. Raises
    `ExternalServiceError` where none is shown, `ValidationError` for one without name or version
    and for an address that is not called."""
    return await _agents.fetch_agent_card(base_url, allow_private=allow_private)


async def discover_agent(base_url: str, *, allow_private: bool | None = None) -> Json | None:
    """Return an agent's card; None: there is none to be had."""
    return await _agents.discover_agent(base_url, allow_private=allow_private)


def clear_agent_card_cache() -> None:
    """Forget all cards."""
    _agents.clear_agent_card_cache()


async def invoke_remote_agent(
    base_url: str,
    message: str,
    *,
    skill: str | None = None,
    timeout_ms: int = DEFAULT_TIMEOUT,
    allow_private: bool | None = None,
) -> RemoteInvocationResult:
    """Give an agent a task and return what came of it, or why nothing did."""
    return await _agents.invoke_remote_agent(
        base_url, message, skill=skill, timeout_ms=timeout_ms, allow_private=allow_private
    )
