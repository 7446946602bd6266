"""One post as it goes over the wire: its id and its headers. The body is the dialect's."""

import base64
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dragoman.model.identity import Scope
from dragoman.model.push import PushAuthentication, PushConfig
from dragoman.push.signature import sign

if TYPE_CHECKING:
    # Only where the option is on: its libraries are an extra.
    from dragoman.push.token import Tokens

TOKEN_HEADER = "x-a2a-notification-token"
JWT_HEADER = "x-a2a-notification-jwt"
EVENT_HEADER = "x-dragoman-event"


def webhook_id(scope: Scope, config: PushConfig, seq: int) -> str:
    """Return the id of an event's post to a receiver, the same for every try of it."""
    names = (scope.agent, scope.tenant, scope.owner, config.task_id, config.id, str(seq))
    # Ids are visible ASCII and the rest never holds a zero, so no two lists read the same.
    return "msg_" + sha256("\0".join(names).encode()).hexdigest()[:40]


def origin(url: str) -> str:
    """Return of an address what may be logged: no path, no query, no user."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that is none"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def headers(
    config: PushConfig,
    body: bytes,
    *,
    id: str,
    seq: int,
    content_type: str,
    now: int,
    secrets: Sequence[bytes],
    tokens: "Tokens | None" = None,
) -> dict[str, str]:
    """Return the headers of one try at a time in milliseconds."""
    timestamp = now // 1000
    found = {
        "content-type": content_type,
        "a2a-version": config.version,
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secrets, id, timestamp, body),
        EVENT_HEADER: str(seq),
    }
    if config.token:
        found[TOKEN_HEADER] = config.token
    wanted = authorization(config.authentication)
    if wanted:
        found["authorization"] = wanted
    if tokens is not None:
        token = tokens.token(id=id, url=config.url, task_id=config.task_id, now=timestamp)
        if wanted:
            found[JWT_HEADER] = token
        else:
            found["authorization"] = f"Bearer {token}"
    return found


def authorization(authentication: PushAuthentication | None) -> str:
    """Return what the receiver wants to see in `Authorization`; empty: nothing was given to show,
    as 0.x allows."""
    if authentication is None or not authentication.credentials:
        return ""
    credentials = authentication.credentials
    # Callers write either `user:password` or what the header has; base64 has no colon.
    if authentication.scheme.lower() == "basic" and ":" in credentials:
        credentials = base64.b64encode(credentials.encode()).decode()
    return f"{authentication.scheme} {credentials}"
