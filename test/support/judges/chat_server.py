"""A real HTTP server of a language model that says how it was asked, and all it can do wrong."""

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ChatServer:
    """Serves `models` on a loopback port. A call takes `takes_s`.

    faults: what the next calls meet, each one of "hang", "close", "short" (of its
    Content-Length), "broken_stream", "no_stream", "slow_stream" (waits after a word),
    "long_stream" (32 MB), "503", "500", "400", "other_model", "no_json", "silly_usage",
    "strange_type". asked: the last message of each call, in the order in which they came. cannot:
    the last message of calls that it answers with 500.
    """

    def __init__(self, models=("m",), takes_s=0.0):
        self.models, self.takes_s = list(models), takes_s
        self.faults, self.asked = deque(), []
        self.lists_models = True
        self.late_lists = 0  # of the next lists of models; they wait as calls do
        self.cannot = ""
        self.most_at_once = self._now = 0
        self._lock = threading.Lock()
        self.go_on = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if owner.late_lists:
                    owner.late_lists -= 1
                    owner.go_on.wait(60.0)
                if not owner.lists_models:
                    return owner._send(self, 500, b"{}")
                listed = [{"id": name} for name in owner.models]
                return owner._send(self, 200, json.dumps({"data": listed}).encode())

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with owner._lock:
                    owner._now += 1
                    owner.most_at_once = max(owner.most_at_once, owner._now)
                    owner.asked.append(body["messages"][-1]["content"])
                    fault = owner.faults.popleft() if owner.faults else ""
                    fault = "500" if owner.cannot == owner.asked[-1] else fault
                owner.go_on.wait(60.0 if fault == "hang" else owner.takes_s)
                with owner._lock:
                    owner._now -= 1  # before the client has the answer and asks again
                try:
                    owner._answer(self, body, fault)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self.name = self.url.removeprefix("http://").removesuffix("/v1")
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, http, body, fault):
        if fault in ("hang", "close"):
            http.close_connection = True
            return
        if fault.isdigit():
            self._send(http, int(fault), b'{"error": "no memory"}')
            return
        model = "another" if fault == "other_model" else body["model"]
        tokens = -5 if fault == "silly_usage" else 7
        if body.get("stream") and fault != "no_stream":
            self._stream(http, model, fault)
            return
        kind = "text/plain; \u00e9" if fault == "strange_type" else "application/json"
        answer = {
            "model": model,
            "choices": [{"message": {"role": "assistant", "content": "yes"}}],
            "usage": {"completion_tokens": tokens},
        }
        data = b"<html>" if fault == "no_json" else json.dumps(answer).encode()
        self._send(http, 200, data, len(data) + (10 if fault == "short" else 0), kind)
        if fault == "short":
            http.close_connection = True

    def _stream(self, http, model, fault):
        http.send_response(200)
        http.send_header("Content-Type", "text/event-stream")
        http.send_header("Connection", "close")
        http.end_headers()
        http.close_connection = True
        words = ("one ", "two ", "three")
        for word in ["x" * 64_000] * 500 if fault == "long_stream" else words:
            event = {"model": model, "choices": [{"delta": {"content": word}}]}
            http.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            http.wfile.flush()
            if fault == "broken_stream":
                return
            if fault == "slow_stream":
                self.go_on.wait(60.0)
        http.wfile.write(b"data: [DONE]\n\n")

    def _send(self, http, status, data, length=None, kind="application/json"):
        http.send_response(status)
        http.send_header("Content-Type", kind.encode().decode("latin-1"))
        http.send_header("Content-Length", str(len(data) if length is None else length))
        http.end_headers()
        http.wfile.write(data)
