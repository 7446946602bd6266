"""What a receiver believes, and what it does not."""

import http.client
import io
import json
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from dragoman.push import (
    BadSignature,
    ForeignTask,
    NotVerified,
    Recent,
    Replayed,
    Stale,
    verify,
)
from dragoman.push.signature import encode_secret, sign

KEY = b"k" * 32
SECRET = encode_secret(KEY)
NOW = 1_700_000_000
BODY = b'{"statusUpdate":{"taskId":"t-1","status":{"state":"TASK_STATE_WORKING"}}}'


def post(
    body: bytes = BODY, *, id: str = "msg_1", at: int = NOW, key: bytes = KEY
) -> dict[str, str]:
    return {
        "Webhook-Id": id,
        "WEBHOOK-TIMESTAMP": str(at),
        "webhook-signature": sign([key], id, at, body),
        "x-dragoman-event": "7",
    }


def check(headers: Any, body: Any = BODY, **given: Any) -> Any:
    return verify(headers, body, SECRET, **{"seen": Recent(), "now": NOW, **given})


def test_a_post_of_ours_is_believed_in_any_shape_of_headers() -> None:
    plain = post()
    as_asgi = [(name.lower().encode(), value.encode()) for name, value in plain.items()]
    for headers in (plain, plain.items(), as_asgi):
        delivery = check(headers, task_ids={"t-1"})
        assert (delivery.id, delivery.sent_at, delivery.position) == ("msg_1", NOW, 7)
        assert delivery.task_id == "t-1" and delivery.content == json.loads(BODY)


def test_headers_of_the_standard_librarys_server_are_read() -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in post().items())
    headers = http.client.parse_headers(io.BytesIO(f"{lines}\r\n".encode()))
    assert check(headers).position == 7
    headers["webhook-id"] = "msg_2"
    with pytest.raises(BadSignature, match="given twice"):
        check(headers)


def test_values_that_are_no_text_are_as_good_as_absent() -> None:
    assert check({**post(), "x-count": 7, "x-none": None, 5: "x"}).position == 7
    with pytest.raises(BadSignature, match="webhook-id is missing"):
        check({**post(), "Webhook-Id": 7})


def test_a_body_is_bytes_or_their_text() -> None:
    for body in (BODY, bytearray(BODY), BODY.decode()):
        assert check(post(), body).task_id == "t-1"
    with pytest.raises(TypeError, match="bytes that came"):
        check(post(), json.loads(BODY))


def test_a_body_nested_too_deep_is_refused() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(BadSignature):
        check(post(deep), deep)


def test_what_the_independent_library_signs_is_believed() -> None:
    from datetime import UTC, datetime

    signed = Webhook(SECRET).sign("m", datetime.fromtimestamp(NOW, UTC), BODY.decode())
    headers = {"webhook-id": "m", "webhook-timestamp": str(NOW), "webhook-signature": signed}
    assert check(headers).position is None


@pytest.mark.parametrize("missing", ["Webhook-Id", "WEBHOOK-TIMESTAMP", "webhook-signature"])
def test_a_missing_header_is_refused(missing: str) -> None:
    headers = post()
    del headers[missing]
    with pytest.raises(BadSignature):
        check(headers)


@pytest.mark.requirement("T-46")
def test_one_bit_of_anything_signed_changes_everything() -> None:
    for bit in range(8 * len(BODY)):
        changed = bytearray(BODY)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSignature):
            check(post(), bytes(changed))
    with pytest.raises(BadSignature):
        check(post() | {"Webhook-Id": "msg_2"})
    with pytest.raises(BadSignature):
        check(post() | {"WEBHOOK-TIMESTAMP": str(NOW + 1)})
    with pytest.raises(BadSignature):
        check(post(key=b"x" * 32))


@pytest.mark.parametrize(
    "text", ["", "now", "1e9", f"{NOW}.0", f" {NOW}", f"+{NOW}", "٣", "9" * 13]
)
def test_a_time_that_is_no_whole_number_is_refused(text: str) -> None:
    headers = post() | {"WEBHOOK-TIMESTAMP": text}
    headers["webhook-signature"] = sign([KEY], "msg_1", NOW, BODY)
    with pytest.raises(BadSignature):
        check(headers)


def test_an_id_with_a_dot_cannot_pass_a_piece_of_the_body_for_the_time() -> None:
    # What was signed as ("x", 1, "2.{}") reads the same as ("x.1", 2, "{}").
    signature = sign([KEY], "x", 1, b"2.{}")
    headers = {"webhook-id": "x.1", "webhook-timestamp": "2", "webhook-signature": signature}
    with pytest.raises(BadSignature):
        check(headers, b"{}", now=2)


def test_a_header_given_twice_is_refused() -> None:
    with pytest.raises(BadSignature):
        check([*post().items(), ("webhook-id", "msg_1")])


@pytest.mark.requirement("T-46")
@pytest.mark.parametrize("age", [-301, 301, 86_400])
def test_a_post_from_another_time_is_refused(age: int) -> None:
    with pytest.raises(Stale):
        check(post(at=NOW - age))


@pytest.mark.parametrize("age", [-300, 0, 300])
def test_clocks_may_differ_by_five_minutes(age: int) -> None:
    assert check(post(at=NOW - age)).sent_at == NOW - age


@pytest.mark.requirement("T-46")
def test_a_captured_post_is_refused_the_second_time() -> None:
    seen = Recent()
    check(post(), seen=seen)
    with pytest.raises(Replayed):
        check(post(), seen=seen)
    # A later try of the same event, which the sender believes was not taken.
    with pytest.raises(Replayed):
        check(post(at=NOW + 60), seen=seen)
    seen.discard("msg_1")
    check(post(at=NOW + 60), seen=seen)


def test_without_a_set_of_its_own_a_process_remembers_by_itself() -> None:
    headers = post(id="msg_of_this_test")
    verify(headers, BODY, SECRET, now=NOW)
    with pytest.raises(Replayed):
        verify(headers, BODY, SECRET, now=NOW)


def test_a_refused_post_does_not_keep_the_true_one_out() -> None:
    seen = set[str]()
    for broken in (post(key=b"x" * 32), post(at=NOW - 999)):
        with pytest.raises(NotVerified):
            check(broken, seen=seen)
    with pytest.raises(ForeignTask):
        check(post(), seen=seen, task_ids=())
    assert not seen
    check(post(), seen=seen)
    assert seen == {"msg_1"}


@pytest.mark.requirement("T-46")
@pytest.mark.parametrize(
    ("content", "task_id"),
    [
        ({"task": {"id": "t"}}, "t"),
        ({"artifactUpdate": {"taskId": "t"}}, "t"),
        ({"message": {"taskId": "t"}}, "t"),
        ({"message": {}}, ""),
        ({"kind": "task", "id": "t"}, "t"),
        ({"kind": "status-update", "taskId": "t", "id": "x"}, "t"),
        ({"task": {"id": 7}}, ""),
        ([], ""),
        ("t", ""),
    ],
)
def test_the_task_is_found_in_the_body_of_every_version(content: Any, task_id: str) -> None:
    body = json.dumps(content).encode()
    assert check(post(body), body).task_id == task_id
    with pytest.raises(ForeignTask):
        check(post(body), body, task_ids={"another"})


@pytest.mark.requirement("T-46")
def test_the_token_must_be_the_one_of_the_configuration() -> None:
    check(post() | {"X-A2A-Notification-Token": "secret"}, token="secret")
    for other in ({}, {"X-A2A-Notification-Token": ""}, {"x-a2a-notification-token": "Secret"}):
        with pytest.raises(BadSignature):
            check(post() | other, token="secret")


def test_a_signed_body_that_is_no_json_is_refused() -> None:
    for body in (b"", b"{", b"\xff"):
        with pytest.raises(BadSignature):
            check(post(body), body)


def test_several_secrets_are_tried_while_one_is_exchanged() -> None:
    for key in (KEY, b"n" * 24):
        verify(post(key=key), BODY, [SECRET, encode_secret(b"n" * 24)], seen=Recent(), now=NOW)


def test_what_is_remembered_is_bounded() -> None:
    recent = Recent(limit=3)
    for n in range(10):
        recent.add(str(n))
    assert [str(n) in recent for n in range(10)] == [False] * 7 + [True] * 3
