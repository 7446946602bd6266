"""Answers in the shape of `/v1/chat/completions`."""

import time
from typing import Any

from dragoman.errors import A2AError
from dragoman.model.identity import new_id
from dragoman.openai.answers import ChatAnswer, ProgramCall, TextDelta
from dragoman.openai.encoding import data_frame
from dragoman.openai.errors import ChatError, shape
from dragoman.openai.prompts import Prompt

_DONE = b"data: [DONE]\n\n"


class ChatEncoder:
    """Writes one completion. What the agent says while it works is `reasoning_content`, which chat
    programs show apart from the answer or not at all."""

    def __init__(self, prompt: Prompt) -> None:
        self._model = prompt.model
        self._tells_usage = prompt.include_usage
        self._id = f"chatcmpl-{new_id()}"
        self._created = int(time.time())

    def begin(self, answer: ChatAnswer) -> bytes:
        """Return the first chunk."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, delta: TextDelta) -> bytes:
        """Return a chunk of text."""
        name = "content" if delta.kind == "text" else "reasoning_content"
        return self._chunk({name: delta.text})

    def end(self, answer: ChatAnswer) -> bytes:
        """Return the chunks with calls of tools, with the reason of the end, and the mark of the
        end."""
        if answer.problem is not None:
            return self.failed(answer.problem)
        frames = b""
        if answer.calls:
            calls = [{"index": place, **_call(one)} for place, one in enumerate(answer.calls)]
            frames = self._chunk({"tool_calls": calls})
        frames += self._chunk({}, _reason(answer))
        if self._tells_usage and (usage := _usage(answer)):
            frames += data_frame(self._document("chat.completion.chunk", []) | usage)
        return frames + _DONE

    def failed(self, error: A2AError | ChatError) -> bytes:
        """Return the error as the last event."""
        return data_frame(shape(error)[1])

    def whole(self, answer: ChatAnswer) -> dict[str, Any]:
        """Return the completion."""
        if answer.problem is not None:
            raise answer.problem
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [_call(one) for one in answer.calls]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _reason(answer),
        }
        return self._document("chat.completion", [choice]) | _usage(answer)

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return data_frame(self._document("chat.completion.chunk", [choice]))

    def _document(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }


def _usage(answer: ChatAnswer) -> dict[str, Any]:
    """Return the tokens that were used, where the agent says so."""
    if not answer.tokens:
        return {}
    read, written = answer.tokens.input_tokens, answer.tokens.output_tokens
    facts = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return {"usage": facts}


def _reason(answer: ChatAnswer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _call(call: ProgramCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
