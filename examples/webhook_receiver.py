"""A receiver of webhooks: believes a post only if it is signed, fresh and not a repetition.

    dragoman serve examples/weather.py --allow-private
    export WEBHOOK_SECRET=$(dragoman push secret)
    uvicorn --app-dir examples --port 8900 webhook_receiver:app
    curl localhost:8000/message:send -H 'content-type: application/json' -d \
      '{"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Oslo"}]},
        "configuration": {"taskPushNotificationConfig": {"url": "http://127.0.0.1:8900/hook"}}}'

It answers before it works on a post: the sender waits for the answer, nobody for the work.
"""

import os

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dragoman.push import NotVerified, Replayed, verify

SECRETS = os.environ["WEBHOOK_SECRET"].split()


def work(content: object) -> None:
    """Do what is to be done when something happened to a task."""
    print(content, flush=True)


async def hook(request: Request) -> Response:
    """Take one post."""
    try:
        delivery = verify(request.headers, await request.body(), SECRETS)
    except Replayed:
        # We took it before and the sender has not heard so: it must not try again.
        return Response(status_code=204)
    except NotVerified:
        return Response(status_code=401)
    return Response(status_code=204, background=BackgroundTask(work, delivery.content))


app = Starlette(routes=[Route("/hook", hook, methods=["POST"])])
