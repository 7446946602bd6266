"""Takes the posts that begin tasks: `POST /api/v1/webhooks/{id}`.

A post is signed as Standard Webhooks are, or shows the secret as a bearer token. An unknown
trigger, one that is off and a wrong secret are answered alike.
"""

import base64
import hmac

import msgspec

from dragoman.errors import A2AError, BodyTooLarge, Overloaded, ParseFailed, StoreRefused
from dragoman.gateway.triggers.triggers import SECRET_PREFIX, Triggers, read
from dragoman.http.request import (
    JSON,
    PUBLIC_BODY_BYTES,
    HttpRequest,
    read_body,
    read_value,
)
from dragoman.model.identity import new_id
from dragoman.push.signature import is_signed
from dragoman.stores.interface.triggers import TriggerRow

PATH = "/api/v1/webhooks/"
# Seconds that a signature's time may be off.
TOLERANCE = 300
_LONGEST_ID = 255
# Headers by which senders name a post, so that it counts once: ours, and that of GitHub.
_IDS = (b"webhook-id", b"idempotency-key", b"x-github-delivery")


async def answer_webhook(request: HttpRequest, triggers: Triggers) -> None:
    """Begin the task of a post."""
    if request.verb != "POST":
        await request.refuse_verb("POST")
        return
    id = request.path.removeprefix(PATH)
    row = await triggers.one(id, None)
    try:
        body = await read_body(request, PUBLIC_BODY_BYTES)
        if row is None or not _is_open(row) or not _is_genuine(request, triggers, row, body):
            await _respond(request, 401, {"error": "unknown webhook, or not signed by its secret"})
            return
        posted = await read_value(body) if body else None
        task_id = await triggers.posted(row, _id_of(request), posted)
    except BodyTooLarge:
        await _respond(request, 413, {"error": f"a post has at most {PUBLIC_BODY_BYTES} bytes"})
    except ParseFailed:
        await _respond(request, 400, {"error": "the body is not JSON"})
    except (Overloaded, StoreRefused):
        await _respond(request, 503, {"error": "busy; post it again later"})
    except A2AError as error:
        await _respond(request, 422, {"error": error.public})
    else:
        await _respond(request, 202, {"data": {"taskId": task_id}})


def _is_open(row: TriggerRow) -> bool:
    found = read(row)
    return found.webhook and found.enabled


def _is_genuine(request: HttpRequest, triggers: Triggers, row: TriggerRow, body: bytes) -> bool:
    """Tell whether a post is signed by the secret, or shows it."""
    secret, now = triggers.secret(row), triggers.clock.now() // 1000
    id, at = request.header(b"webhook-id"), request.header(b"webhook-timestamp")
    signature = request.header(b"webhook-signature")
    if id and at and signature:
        is_number = at.isascii() and at.isdecimal() and len(at) <= 18
        if not is_number or abs(now - int(at)) > TOLERANCE:
            return False
        return is_signed([secret], signature, id, at, body)
    scheme, _, shown = (request.header(b"authorization") or "").partition(" ")
    expected = SECRET_PREFIX.encode() + base64.b64encode(secret)
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.encode(), expected)


def _id_of(request: HttpRequest) -> str:
    """Return what a post is known by when it comes again."""
    for name in _IDS:
        if (value := request.header(name)) and len(value) <= _LONGEST_ID:
            return value
    return new_id()


async def _respond(request: HttpRequest, status: int, content: object) -> None:
    body = msgspec.json.encode(content)
    headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
    await request.respond(status, headers, body)
