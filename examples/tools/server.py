"""The service that tools/rest calls: resources by their ids, for whoever has the token."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

TOKEN = os.environ["EXAMPLE_API_TOKEN"]


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        if self.headers.get("Authorization") != "Bearer " + TOKEN:
            return self.answer(401, {"error": "who are you?"})
        if self.path == "/v1/resources":
            return self.answer(200, {"data": [{"id": "a"}, {"id": "b"}]})
        self.answer(200, {"data": {"id": unquote(self.path.rsplit("/", 1)[-1])}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(201, {"data": {"id": "c", **body}})

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8642), Handler)
print(server.server_port, flush=True)
server.serve_forever()
