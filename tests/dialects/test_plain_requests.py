"""What the typed reader of ordinary requests takes, the tolerant one reads to the same operation;
whatever else comes is left to that one."""

from typing import Any

import msgspec
import pytest

from dragoman.dialects.plain_requests import plain_get, plain_send, plain_send_0_3
from dragoman.dialects.reading import MAX_INT32, MAX_PARTS
from dragoman.dialects.v0_3 import V0_3
from dragoman.dialects.v0_3 import decode_send as decode_send_0_3
from dragoman.dialects.v1_0 import V1_0, decode_get, decode_send
from dragoman.errors import InvalidParams
from dragoman.model import operations as ops
from tests.corpus.params import cases
from tests.corpus.run import SEED

MESSAGE: dict[str, Any] = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
PLAIN = [
    {},
    {"message": {"role": "ROLE_AGENT", "parts": [{"text": ""}, {"text": "é\n"}]}},
    {"message": {"contextId": "c", "taskId": "t", "metadata": {"skillId": "echo", "n": [1.5]}}},
    {"message": {"contextId": None, "taskId": None, "metadata": None}},
    {"configuration": {}, "metadata": {"a": {"b": None}}},
    {"configuration": {"historyLength": 0, "returnImmediately": True}},
    {"configuration": {"historyLength": MAX_INT32, "returnImmediately": False}},
    {"configuration": {"acceptedOutputModes": ["text/plain", "é" * 256]}},
    {"configuration": {"acceptedOutputModes": None, "returnImmediately": None}},
    {"configuration": None, "metadata": None},
]
PLAIN_0_3 = [
    {},
    {"message": {"role": "agent", "kind": None}},
    {"message": {"contextId": "c", "taskId": "t", "metadata": {"a": 1}}},
    {"configuration": {"blocking": False, "acceptedOutputModes": [], "historyLength": 3}},
    {"configuration": {"blocking": True}, "metadata": {"a": {}}},
    {"configuration": {"blocking": None}},
]
OTHERS_0_3 = [
    {"message": {"kind": "task"}},
    {"message": {"role": "ROLE_USER"}},
    {"message": {"messageId": None}, "messageId": "beside"},
    {"message": {"parts": [{"text": "without a kind"}]}},
    {"message": {"parts": [{"type": "text", "text": "of the ancestor"}]}},
    {"message": {"parts": [{"kind": "text", "text": "x", "metadata": {"a": 1}}]}},
    {"message": {"parts": [{"kind": "data", "data": {}}]}},
    {"message": {"parts": []}},
    {"message": {"extra": 1}},
    {"configuration": {"blocking": "yes"}},
    {"configuration": {"pushNotificationConfig": {"url": "https://example.com"}}},
]
OTHERS = [
    {"message": {"messageId": ""}},
    {"message": {"messageId": "two words"}},
    {"message": {"messageId": "line\n"}},
    {"message": {"messageId": "x" * 257}},
    {"message": {"message_id": "m"}},
    {"message": {"role": 1}},
    {"message": {"role": "user"}},
    {"message": {"parts": []}},
    {"message": {"parts": [{"text": "x"}] * (MAX_PARTS + 1)}},
    {"message": {"parts": [{"text": "x", "metadata": {}}]}},
    {"message": {"parts": [{"data": {}}]}},
    {"message": {"parts": [{"text": None}]}},
    {"message": {"contextId": ""}},
    {"message": {"extensions": []}},
    {"message": {"unknown": 1}},
    {"configuration": {"historyLength": "3"}},
    {"configuration": {"historyLength": -1}},
    {"configuration": {"historyLength": True}},
    {"configuration": {"returnImmediately": 1}},
    {"configuration": {"acceptedOutputModes": ["x" * 257]}},
    {"configuration": {"acceptedOutputModes": ["x"] * 101}},
    {"configuration": {"acceptedOutputModes": "text/plain"}},
    {"configuration": []},
    {"metadata": []},
    {"tenant": "t"},
    {"unknown": 1},
]


def _params(change: dict[str, Any]) -> dict[str, Any]:
    return {**change, "message": {**MESSAGE, **change.get("message", {})}}


def _result(read: Any, *given: Any) -> Any:
    """Return what a reader makes of a request: an operation, or the error in its words."""
    try:
        return read(*given)
    except InvalidParams as error:
        return str(error), error.facts


@pytest.mark.parametrize("change", PLAIN)
def test_an_ordinary_send_is_read_by_type_to_the_same_operation(change: dict[str, Any]) -> None:
    params = _params(change)
    for kind in (ops.SendMessage, ops.StreamMessage):
        assert plain_send(params, kind) == decode_send(params, kind)
    assert type(plain_send(params, ops.StreamMessage)) is ops.StreamMessage


@pytest.mark.parametrize("change", OTHERS)
def test_any_other_send_is_left_to_the_tolerant_reader(change: dict[str, Any]) -> None:
    params = _params(change)
    assert plain_send(params, ops.SendMessage) is None
    asked = _result(V1_0.decode_request, "SendMessage", params)
    assert asked == _result(decode_send, params, ops.SendMessage)


def _params_0_3(change: dict[str, Any]) -> dict[str, Any]:
    parts = [{"kind": "text", "text": "hello"}]
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": parts}
    return {**change, "message": {**message, **change.get("message", {})}}


@pytest.mark.parametrize("change", PLAIN_0_3)
def test_an_ordinary_send_of_0_3_is_read_by_type_to_the_same_operation(
    change: dict[str, Any],
) -> None:
    params = _params_0_3(change)
    for kind in (ops.SendMessage, ops.StreamMessage):
        assert plain_send_0_3(params, kind) == decode_send_0_3(params, kind, "0.3")


@pytest.mark.parametrize("change", OTHERS_0_3)
def test_any_other_send_of_0_3_is_left_to_the_tolerant_reader(change: dict[str, Any]) -> None:
    params = _params_0_3(change)
    assert plain_send_0_3(params, ops.SendMessage) is None
    asked = _result(V0_3.decode_request, "message/send", params)
    assert asked == _result(decode_send_0_3, params, ops.SendMessage, "0.3")


@pytest.mark.parametrize(
    "params", [{"id": "t"}, {"id": "t", "historyLength": 2}, {"id": "~" * 256}]
)
def test_an_ordinary_get_is_read_by_type_to_the_same_operation(params: Any) -> None:
    assert plain_get(params) == decode_get(params)


@pytest.mark.parametrize(
    "params", [{}, [], None, {"id": ""}, {"id": 1}, {"id": "a b"}, {"id": "t", "tenant": "x"}]
)
def test_any_other_get_is_left_to_the_tolerant_reader(params: Any) -> None:
    assert plain_get(params) is None


def test_metadata_of_any_size_that_one_reader_refuses_the_other_refuses_too() -> None:
    params = _params({"message": {"metadata": {"a": "x" * 70_000}}})
    refused = _result(plain_send, params, ops.SendMessage)
    assert refused == _result(decode_send, params, ops.SendMessage)
    assert "bytes" in refused[0]


def test_no_request_of_the_corpus_is_read_differently_by_type() -> None:
    compared = taken = 0
    for case in cases(3_000, SEED):
        try:
            value = msgspec.json.decode(case.body)
            method, params = value["method"], value["params"]
        except (msgspec.DecodeError, KeyError, TypeError):
            continue
        if method in ("SendMessage", "SendStreamingMessage"):
            plain = _result(plain_send, params, ops.SendMessage)
            whole = _result(decode_send, params, ops.SendMessage)
        elif method in ("message/send", "message/stream"):
            plain = _result(plain_send_0_3, params, ops.SendMessage)
            whole = _result(decode_send_0_3, params, ops.SendMessage, "0.3")
        elif method == "GetTask":
            plain, whole = _result(plain_get, params), _result(decode_get, params)
        else:
            continue
        compared += 1
        if plain is not None:
            taken += 1
            assert plain == whole, case
    assert compared > 500 and taken > 0
