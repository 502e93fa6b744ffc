"""A server of streamable HTTP that misbehaves in the way its first argument names; says its port first."""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

way = sys.argv[1]
TOOL = {"name": "say", "inputSchema": {"type": "object"}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(405)

    def do_DELETE(self):
        self.reply(200)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = message.get("method")
        if way == "redirect":
            return self.reply(307, Location="http://127.0.0.1:1/")
        if way == "auth" and self.headers.get("Authorization") != "Bearer swordfish":
            return self.reply(401, b"who are you?", WWW_Authenticate="Bearer")
        if "id" not in message:
            return self.reply(202)
        if method == "initialize":
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                      "serverInfo": {"name": "odd", "version": "1"}}
        elif method == "tools/list":
            result = {"tools": [TOOL]}
        elif method == "ping":
            result = {}
        else:
            if way == "busy":
                return self.reply(429, Retry_After="7")
            if way == "html":
                return self.reply(200, b"<html>", Content_Type="text/html")
            if way in ("long-json", "long-event"):
                self.send_response(200)
                self.send_header("Content-Type", "application/json" if way == "long-json" else "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    self.wfile.write(b"data: {\"x\": \"" if way == "long-event" else b"{\"x\": \"")
                    for _ in range(200):
                        self.wfile.write(b"x" * 1_000_000)
                except OSError:
                    pass
                self.close_connection = True
                return None
            if way in ("dense-json", "dense-event"):
                dense = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"structuredContent":[%s0]}}' % (
                    message["id"], b"0," * 4_000_000)
                if way == "dense-json":
                    return self.reply(200, dense, Content_Type="application/json")
                return self.reply(200, b"data: " + dense + b"\n\n", Content_Type="text/event-stream")
            if way == "events":
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
                for _ in range(10):
                    self.wfile.write(b"data: %s\n\n" % json.dumps(note).encode())
                done = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": "hi"}]}}
                self.wfile.write(b"id: 5\r\ndata: %s\r\n\r\n" % json.dumps(done).encode())
                self.close_connection = True
                return None
            seen = {name.lower(): value for name, value in self.headers.items()}
            result = {"content": [{"type": "text", "text": json.dumps(seen)}]}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        return self.reply(200, body, Content_Type="application/json")


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
