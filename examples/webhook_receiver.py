"""A receiver of webhooks: believes a post only if it is signed, fresh and not a repetition.

    dragoman serve examples/weather.py --allow-private
    export WEBHOOK_SECRET=$(dragoman push secret)
    uvicorn --app-dir examples --port 8900 webhook_receiver:app
    curl localhost:8000/message:send -H 'content-type: application/json' -d \
      '{"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Oslo"}]},
        "configuration": {"taskPushNotificationConfig": {"url": "http://127.0.0.1:8900/hook"}}}'

Any server of ASGI will do (`pip install uvicorn`).

It answers before it works on a post: the sender waits for the answer, not for the work.
"""

import os
from typing import Any

from dragoman.push import NotVerified, Replayed, verify

SECRETS = os.environ["WEBHOOK_SECRET"].split()


def work(content: object) -> None:
    """Do what is to be done when something happened to a task."""
    print(content, flush=True)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Take one post, whichever path it comes to."""
    if scope["type"] != "http":
        return  # There is nothing to start or stop.
    body, more = b"", True
    while more:
        piece = await receive()
        body, more = body + piece.get("body", b""), piece.get("more_body", False)
    delivery, status = None, 204
    try:
        delivery = verify(scope["headers"], body, SECRETS)
    except Replayed:
        pass  # We took it before and the sender has not heard so: it must not try again.
    except NotVerified:
        status = 401
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body"})
    if delivery is not None:
        work(delivery.content)
