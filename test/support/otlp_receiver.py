"""A real OTLP/HTTP receiver, which keeps what it takes."""

import contextlib
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class OtlpReceiver:
    """`spans` are (service, instance, span) of everything that it took.

    `mode`: "takes"; "refuses" answers 400, "busy" 503; "hangs" answers nobody before `go_on`.
    """

    def __init__(self, mode: str = "takes") -> None:
        self.mode = mode
        self.spans: list[tuple] = []
        self.asked: Counter[str] = Counter()
        """Requests, by mode at that time."""
        self.go_on = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body, mode = self.rfile.read(int(self.headers["Content-Length"])), owner.mode
                owner.asked[mode] += 1
                if mode == "hangs":
                    owner.go_on.wait(60)
                status = {"refuses": 400, "busy": 503}.get(mode, 200)
                if self.path != "/v1/traces":
                    status = 404
                if status == 200 and mode != "hangs":
                    owner._take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def handle(self):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    super().handle()  # who sent it may not have waited

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def _take(self, request) -> None:
        for of_resource in request.resource_spans:
            about = attributes(of_resource.resource)
            who = about["service.name"], about["service.instance.id"]
            self.spans += [
                (*who, span) for scope in of_resource.scope_spans for span in scope.spans
            ]


def attributes(of) -> dict:
    """Of a resource, a span or an event."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}
