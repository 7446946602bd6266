"""A chat model behind an address: run this, then `dragoman serve http://127.0.0.1:8100/v1#parrot`."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Parrot(BaseHTTPRequestHandler):
    """Speaks as most makers of models do, and repeats what it is told."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = " / ".join(m["content"] for m in asked["messages"] if m["role"] == "user")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for text, end in ((said, None), ("!", "stop")):
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": end}
            self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


server = ThreadingHTTPServer(("127.0.0.1", int((sys.argv[1:] or ["8100"])[0])), Parrot)
print(server.server_port, flush=True)
server.serve_forever()
