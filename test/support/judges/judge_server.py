"""A real HTTP server that speaks the chat completion protocol, with a judge behind it, and faults.

The answers are the judge's own: pictures are decoded from their data URLs, questions read from the
message's text.
"""

import base64
import io
import json
import math
import threading
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image

from kairos_ros.vlm.judge import Question, Verdict

CONSTRAINTS = ("structured_outputs", "guided_choice", "regex", "response_format")


class JudgeServer:
    """Serves `judge` on a loopback port.

    understands: the constraint fields that it obeys; strict: a field that it does not know is a
    400, as OpenAI's is, else ignored, as most servers do. terse: the model says just
    the word without being held to it. faults: what the next requests meet, each one of "500",
    "503", "garbage", "html", "close", "slow", "drip", "huge", "off", or "429:<Retry-After>".
    """

    def __init__(
        self, judge, understands=CONSTRAINTS, strict=False, logprobs=True, key="", terse=True
    ):
        self.judge, self.understands, self.strict = judge, set(understands), strict
        self.logprobs, self.key, self.terse = logprobs, key, terse
        self.faults = deque()
        self.seen = Counter()
        self.requests, self.headers = [], []
        self.most_at_once = self._now = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                try:
                    owner._answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, http):
        body = http.rfile.read(int(http.headers["Content-Length"]))
        with self._lock:
            fault = self.faults.popleft() if self.faults else ""
            self.seen[fault or "answered"] += 1
        if self.key and http.headers.get("Authorization") != f"Bearer {self.key}":
            return _send(http, 401, {"error": {"message": "Incorrect API key provided"}})
        if fault.startswith("429"):
            return _send(http, 429, {"error": "busy"}, {"Retry-After": fault.partition(":")[2]})
        match fault:
            case "500" | "503":
                return _send(http, int(fault), {"error": "CUDA out of memory"})
            case "garbage":
                return _send(http, 200, b'{"choices": [{"message"')
            case "html":
                return _send(http, 200, b"<html>Bad gateway</html>")
            case "close":
                http.close_connection = True
                return None
            case "slow":
                self._over.wait(5.0)
                return None
            case "drip":
                return self._drip(http)
            case "huge":
                return _send(http, 200, b" " * (3 << 20))
        request = json.loads(body)
        self.requests.append(request)
        self.headers.append({name.lower(): value for name, value in http.headers.items()})
        unknown = [c for c in CONSTRAINTS if c in request and c not in self.understands]
        if unknown and self.strict:
            message = f"Unrecognized request argument supplied: {unknown[0]}"
            return _send(http, 400, {"error": {"message": message}})
        if request.get("logprobs") and not self.logprobs and self.strict:
            return _send(http, 400, {"error": {"message": "logprobs are not supported"}})
        with self._lock:
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            completion = self._completion(request, off=fault == "off")
        finally:
            with self._lock:
                self._now -= 1  # before the client has the answer and asks again
        return _send(http, 200, completion)

    def _drip(self, http):
        """Sends a byte now and then, so that no single read ever times out."""
        http.send_response(200)
        http.send_header("Content-Length", "1000")
        http.end_headers()
        while not self._over.wait(0.05):
            http.wfile.write(b" ")
            http.wfile.flush()

    def _completion(self, request, off):
        *pictures, words = request["messages"][0]["content"]
        images = tuple(_picture(p["image_url"]["url"]) for p in pictures)
        prompt, task, allowed = words["text"].split("\n")
        answers = tuple(allowed.removeprefix("Answer with one of: ").rstrip(".").split(", "))
        instruction = task.removeprefix("The robot's task: ")
        (verdict,) = self.judge.judge([Question("http", prompt, instruction, images, answers)])
        held = [c for c in CONSTRAINTS if c in request and c in self.understands]
        if off or not isinstance(verdict, Verdict):
            text, pieces = "I cannot tell from this picture.", None
        elif held and held[0] == "response_format":
            text = json.dumps({"answer": verdict.answer})
            pieces = ['{"', "answer", '": "', *_pieces(verdict.answer), '"}']
        elif held:
            text, pieces = verdict.answer, _pieces(verdict.answer)
        elif self.terse:
            pieces = [" " + verdict.answer.capitalize(), ".\n"]
            text = "".join(pieces)
        else:
            text = f"Looking at the picture, I would say: {verdict.answer.capitalize()}."
            pieces = [
                "Looking at the picture, I would say:",
                " " + verdict.answer.capitalize(),
                ".",
            ]
        logprobs = None
        if pieces and request.get("logprobs") and self.logprobs:
            logprobs = {"content": [_token(piece, verdict) for piece in pieces]}
        return {
            "object": "chat.completion",
            "model": request["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "logprobs": logprobs,
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 100 * len(images), "completion_tokens": 2},
        }


def _pieces(word):
    """As tokenizers do: a word in more than one token."""
    return [word[:3], word[3:]] if len(word) > 3 else [word]


def _token(piece, verdict):
    """A token with the alternatives that the judge's probabilities stand for."""
    bare = piece.strip().lower()
    begins = bare and verdict.answer.startswith(bare)
    if not begins:
        return {"token": piece, "logprob": 0.0, "top_logprobs": [{"token": piece, "logprob": 0.0}]}
    lead = piece[: len(piece) - len(piece.lstrip())]
    top = [
        {
            "token": piece if a == verdict.answer else lead + _pieces(a)[0],
            "logprob": math.log(max(p, 1e-9)),
        }
        for a, p in verdict.probabilities.items()
    ]
    own = math.log(max(verdict.probabilities[verdict.answer], 1e-9))
    return {"token": piece, "logprob": own, "top_logprobs": top}


def _picture(url):
    head, _, data = url.partition(",")
    assert head == "data:image/jpeg;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def _send(http, status, body, headers=None):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    http.send_response(status)
    http.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        http.send_header(name, value)
    http.end_headers()
    http.wfile.write(body)
