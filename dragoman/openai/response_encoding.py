"""Answers in the shape of `/v1/responses`: items of output and, in a stream, an event for each
change of one."""

import time
from typing import Any

from dragoman.errors import A2AError
from dragoman.model.identity import new_id
from dragoman.model.record import encode
from dragoman.model.task import TaskState
from dragoman.openai.answers import ChatAnswer, ProgramCall, TextDelta
from dragoman.openai.conversations import response_id
from dragoman.openai.errors import ChatError, shape
from dragoman.openai.prompts import Prompt


class ResponseEncoder:
    """Writes one response. A task that failed is a response with the status `failed`."""

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._item_id = f"msg_{new_id()}"
        self._created = int(time.time())
        self._id = ""
        self._sequence = -1
        self._text = ""
        self._is_open = False

    def begin(self, answer: ChatAnswer) -> bytes:
        """Return the events that open the response."""
        self._id = response_id(answer.task_id, answer.context_id)
        opening = self._document("in_progress", [])
        return self._event("response.created", response=opening) + self._event(
            "response.in_progress", response=opening
        )

    def delta(self, delta: TextDelta) -> bytes:
        """Return the event of some more text; the first opens the item it belongs to."""
        if delta.kind != "text":
            return b""
        frames = b"" if self._is_open else self._open_item()
        self._text += delta.text
        return frames + self._event("response.output_text.delta", **self._place, delta=delta.text)

    def end(self, answer: ChatAnswer) -> bytes:
        """Return the events that complete each item, and the response."""
        frames = self._close_item() if self._is_open else b""
        for place, call in enumerate(answer.calls, start=int(self._is_open)):
            frames += self._call_events(place, call)
        document = self.whole(answer)
        return frames + self._event(f"response.{document['status']}", response=document)

    def failed(self, error: A2AError | ChatError) -> bytes:
        """Return the event of an error."""
        facts = shape(error)[1]["error"]
        return self._event(
            "error", code=facts["code"], message=facts["message"], param=facts["param"]
        )

    def whole(self, answer: ChatAnswer) -> dict[str, Any]:
        """Return the response."""
        self._id = response_id(answer.task_id, answer.context_id)
        output = [self._message("completed", answer.text)] if answer.text else []
        output += [_call_item(one, "completed") for one in answer.calls]
        usage = _usage(answer)
        if answer.problem is None:
            return self._document("completed", output) | usage
        error = {"code": "server_error", "message": answer.problem.public}
        return self._document("failed", output) | usage | {"error": error}

    def stored(self, answer: ChatAnswer, state: TaskState) -> dict[str, Any]:
        """Return the response of a task that may not be done yet."""
        found = self.whole(answer)
        if state is TaskState.CANCELED:
            return found | {"status": "cancelled", "error": None}
        if answer.is_done:
            return found
        is_queued = state is TaskState.SUBMITTED
        return found | {"status": "queued" if is_queued else "in_progress"}

    def _open_item(self) -> bytes:
        self._is_open = True
        item: dict[str, Any] = self._message("in_progress", "") | {"content": []}
        return self._event("response.output_item.added", output_index=0, item=item) + self._event(
            "response.content_part.added", **self._place, part=_text_part("")
        )

    def _close_item(self) -> bytes:
        return (
            self._event("response.output_text.done", **self._place, text=self._text)
            + self._event("response.content_part.done", **self._place, part=_text_part(self._text))
            + self._event(
                "response.output_item.done",
                output_index=0,
                item=self._message("completed", self._text),
            )
        )

    def _call_events(self, place: int, call: ProgramCall) -> bytes:
        open_item = _call_item(call, "in_progress") | {"arguments": ""}
        facts = {"item_id": _item_id(call), "output_index": place}
        return (
            self._event("response.output_item.added", output_index=place, item=open_item)
            + self._event("response.function_call_arguments.delta", **facts, delta=call.arguments)
            + self._event(
                "response.function_call_arguments.done",
                **facts,
                name=call.name,
                arguments=call.arguments,
            )
            + self._event(
                "response.output_item.done",
                output_index=place,
                item=_call_item(call, "completed"),
            )
        )

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0, "logprobs": []}

    def _message(self, status: str, text: str) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [_text_part(text)],
        }

    def _document(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        prompt = self._prompt
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": prompt.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "previous_response_id": prompt.previous or None,
            "background": prompt.background,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [
                {"type": "function", "strict": False, **one} for one in prompt.tools.values()
            ],
            "temperature": None,
            "top_p": None,
            "usage": None,
        }

    def _event(self, kind: str, **facts: Any) -> bytes:
        self._sequence += 1
        body = encode({"type": kind, "sequence_number": self._sequence, **facts})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)


def _usage(answer: ChatAnswer) -> dict[str, Any]:
    """Return the tokens that were used, where the agent says so."""
    if not answer.tokens:
        return {}
    read, written = answer.tokens.input_tokens, answer.tokens.output_tokens
    facts = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }
    return {"usage": facts}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item_id(call: ProgramCall) -> str:
    return f"fc_{call.id.removeprefix('call_')}"


def _call_item(call: ProgramCall, status: str) -> dict[str, Any]:
    return {
        "id": _item_id(call),
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
    }
