"""Models behind the chat completions API, which most vendors and local servers offer.

Requests go through `egress`. The key comes from the environment or a file, is sent to the origin of
`url` only and is never logged. A request that did not reach the model, or that the server deferred,
is retried; one whose answer had begun is not.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from dragoman.agents.models import ModelFailed, ModelReply, ModelRequest, ReplyChunk, TokenUsage
from dragoman.agents.openai_wire import (
    CallParts,
    Completion,
    StreamEvent,
    body_of,
    call_of,
    usage_of,
)
from dragoman.client.http import Http, HttpExchange, read_all, wish
from dragoman.egress.egress import Egress
from dragoman.egress.errors import EgressError, EgressFailed
from dragoman.egress.targets import Anywhere
from dragoman.errors import ConfigError, ParseFailed
from dragoman.security.json_values import check_document

OPENAI = "https://api.openai.com/v1"
KEY = "OPENAI_API_KEY"
# Statuses after which a retry may succeed.
_RETRYABLE = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
MAX_ANSWER = 8 * 1024 * 1024
MAX_LINE = 1024 * 1024
# Seconds before the next try, doubled each time; and the longest `Retry-After` that is honoured.
PAUSE, LONGEST_PAUSE = 0.5, 30.0


class OpenAIModel:
    """A model by its name. `url` is what `/chat/completions` follows; without one it is
    `OPENAI_BASE_URL` or OpenAI's own. The key is read from `key_file`, else from the variable
    `key_variable`, each time it is needed, so that it can change. Local servers need none.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str = "",
        key_file: str | Path | None = None,
        key_variable: str = KEY,
        timeout: float = 120.0,
        tries: int = 3,
        http: Http | None = None,
    ) -> None:
        """`timeout` is how many seconds the server may be silent."""
        if not name:
            raise ConfigError("a model needs a name, such as gpt-5-mini")
        self.name = name
        base = url or os.environ.get("OPENAI_BASE_URL", "") or OPENAI
        self._url = f"{base.rstrip('/')}/chat/completions"
        self._key_file = Path(key_file) if key_file is not None else None
        self._key_variable = key_variable
        self._timeout = timeout
        self._tries = tries
        self._given_egress = http
        self._own_egress: Egress | None = None

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r})"

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Return the whole answer."""
        async with AsyncExitStack() as opened:
            exchange = await self._open(request, opened, streams=False)
            try:
                async with asyncio.timeout(self._timeout):
                    body, is_cut = await read_all(exchange, MAX_ANSWER)
            except (EgressError, TimeoutError) as error:
                raise ModelFailed(f"the answer broke off: {_reason(error)}") from None
        if is_cut:
            raise ModelFailed(f"the answer has more than {MAX_ANSWER} bytes")
        answer = _decoded(body, Completion)
        if not answer.choices:
            raise ModelFailed("the answer has no choices")
        message = answer.choices[0].message
        calls = [
            call_of(call.id, call.function.name, call.function.arguments, index)
            for index, call in enumerate(message.tool_calls or [])
        ]
        return ModelReply(message.content or "", calls, usage_of(answer.usage) or TokenUsage())

    async def stream(self, request: ModelRequest) -> AsyncIterator[ReplyChunk]:
        """Yield the answer in chunks."""
        async with AsyncExitStack() as opened:
            exchange = await self._open(request, opened, streams=True)
            if not exchange.headers.get("content-type", "").startswith("text/event-stream"):
                raise ModelFailed("the server does not stream; use streaming=False")
            parts: dict[int, CallParts] = {}
            is_finished = False
            async for event in self._events(exchange):
                usage = usage_of(event.usage)
                for choice in event.choices[:1]:
                    is_finished = is_finished or choice.finish_reason is not None
                    for piece in choice.delta.tool_calls or []:
                        parts.setdefault(piece.index, CallParts()).add(piece)
                    if choice.delta.content:
                        yield ReplyChunk(choice.delta.content)
                if usage is not None:
                    yield ReplyChunk(usage=usage)
            if not is_finished:
                raise ModelFailed("the stream broke off")
            yield ReplyChunk(tool_calls=[parts[index].call(index) for index in sorted(parts)])

    async def close(self) -> None:
        """Close the connections; the next call opens them again."""
        own, self._own_egress = self._own_egress, None
        if own is not None:
            await own.close()

    @property
    def _http(self) -> Http:
        if self._given_egress is not None:
            return self._given_egress
        if self._own_egress is None:
            # The author chose the address, as with any client in author code.
            self._own_egress = Egress(policy=Anywhere())
        return self._own_egress

    async def _events(self, exchange: HttpExchange) -> AsyncGenerator[StreamEvent]:
        """Yield the events of a stream up to `[DONE]`."""
        rest = b""
        chunks = aiter(exchange.chunks())
        while True:
            try:
                async with asyncio.timeout(self._timeout):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except (EgressError, TimeoutError) as error:
                raise ModelFailed(f"the stream broke off: {_reason(error)}") from None
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE:
                raise ModelFailed(f"a line of the stream has more than {MAX_LINE} bytes")
            for line in lines:
                name, _, data = line.rstrip(b"\r").partition(b":")
                if name != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    return
                yield _decoded(data.strip(), StreamEvent)

    async def _open(
        self, request: ModelRequest, opened: AsyncExitStack, *, streams: bool
    ) -> HttpExchange:
        """Return the head of a successful answer, after as many tries as are allowed."""
        body = msgspec.json.encode(body_of(self.name, request, streams=streams))
        headers = {"content-type": "application/json", **self._authorization()}
        pause, problem = PAUSE, ""
        for number in range(self._tries):
            if number:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            context = self._http.open("POST", self._url, headers=headers, body=body)
            try:
                async with asyncio.timeout(self._timeout):
                    exchange = await opened.enter_async_context(context)
            except EgressFailed as error:
                problem = error.reason
                if error.is_sent:
                    break
                continue
            except (EgressError, TimeoutError) as error:
                problem = _reason(error)
                break
            if exchange.status == 200:
                return exchange
            problem = f"the server says {exchange.status}"
            wanted = wish(exchange.headers).get("retryAfter")
            pause = min(float(wanted), LONGEST_PAUSE) if wanted else pause
            await opened.aclose()
            if exchange.status not in _RETRYABLE:
                break
        # Without the server's text: it may quote the request, or the key.
        raise ModelFailed(f"{self.name}: {problem}{_advice(problem)}")

    def _authorization(self) -> dict[str, str]:
        if self._key_file is not None:
            try:
                key = self._key_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise ModelFailed(f"the key file cannot be read: {error.strerror}") from None
        else:
            key = os.environ.get(self._key_variable, "").strip()
        return {"authorization": f"Bearer {key}"} if key else {}


def _advice(problem: str) -> str:
    return "; check the key" if problem.endswith(("401", "403")) else ""


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, EgressError) else "no answer in time"


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        check_document(body)
        return msgspec.json.decode(body, type=kind)
    except (ParseFailed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ModelFailed("the answer is not a chat completion") from None
