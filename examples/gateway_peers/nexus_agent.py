"""An agent as the NEXUS document describes one: flat tasks, and parts of type and data."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

tasks: dict[str, dict[str, Any]] = {}


def answered(body: dict[str, Any]) -> dict[str, Any]:
    """Answer one of the two methods there are."""
    params, answer = body["params"], {"jsonrpc": "2.0", "id": body["id"]}
    if body["method"] == "message/send":
        said = params["message"]
        text = "".join(part["data"] for part in said["parts"] if part["type"] == "text")
        spoken = {"role": "agent", "parts": [{"type": "text", "data": text[::-1]}]}
        task = {"id": params["id"], "status": "completed", "messages": [said, spoken]}
        tasks[task["id"]] = task | {"artifacts": [{"parts": spoken["parts"]}]}
    elif body["method"] != "tasks/get":
        return answer | {"error": {"code": -32601, "message": "Method not found"}}
    if params["id"] not in tasks:
        return answer | {"error": {"code": -32602, "message": "Task not found"}}
    return answer | {"result": tasks[params["id"]]}


class Reverse(BaseHTTPRequestHandler):
    """Says it backwards."""

    def do_GET(self) -> None:
        is_card = self.path == "/.well-known/agent.json"
        skill = {"id": "reverse", "name": "Reverse", "description": "Reverses."}
        card = {"name": "Reverse", "description": self.__doc__, "url": address, "skills": [skill]}
        self.reply(200 if is_card else 404, card if is_card else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.reply(200, answered(body))

    def reply(self, status: int, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of it."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Reverse)
    address = f"http://127.0.0.1:{server.server_port}/"
    print(f"Ready: {address}", flush=True)
    server.serve_forever()
