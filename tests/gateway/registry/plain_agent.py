"""A NEXUS agent as its guide has one made: a plain HTTP server of the standard library that takes a
POST and knows nothing else, no HEAD, no GET and no card."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Texts that such an agent cannot bear: a status of 500, an answer that is none, or none at all.
POISON = "poison"
NONSENSE = "nonsense"
CRASH = "crash"


class _Handler(BaseHTTPRequestHandler):
    server: "_Server"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked)
        params = asked["params"]
        text = params["message"]["parts"][0]["data"] if "message" in params else ""
        if text == CRASH:
            # As an exception in a handler of such a server ends: without an answer.
            self.close_connection = True
            return
        if text == POISON:
            self.send_error(500)
            return
        said = [params.get("message", {}), {"role": "agent", "parts": [_part(f"Echo: {text}")]}]
        task = {"id": params.get("id", "t-1"), "status": "completed", "messages": said}
        task["artifacts"] = [{"parts": [_part(f"Echo: {text}")]}]
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": task}).encode()
        if text == NONSENSE:
            body = b"<html>"
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing to the terminal, but remember the request."""
        self.server.requests.append(self.command)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        # The JSON of every POST, and the verb of every request that was answered.
        self.asked: list[Any] = []
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "data": text}


@contextlib.contextmanager
def plain_agent() -> Iterator[_Server]:
    """Serve such an agent from a thread."""
    server = _Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
