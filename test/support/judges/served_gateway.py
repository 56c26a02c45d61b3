"""A gateway that listens on loopback, and calls of it."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import uvicorn
from wire import until

from kairos_ros.core.calls.call import Caller, caller_headers
from kairos_ros.core.calls.dispatch import dispatch_called
from kairos_ros.core.calls.orders import order_called
from kairos_ros.gateway.backend import HttpBackend
from kairos_ros.gateway.connection import Connection
from kairos_ros.gateway.gateway import Gateway
from kairos_ros.gateway.server import application


@contextlib.contextmanager
def gateway(*backends, token="", order="latest_start", **options):
    """A client of a gateway that listens on loopback."""
    own = Gateway(
        [one if hasattr(one, "ask") else HttpBackend(one.url) for one in backends],
        order=order_called(order),
        dispatch=dispatch_called("fewest_calls"),
        **options,
    )
    config = uvicorn.Config(
        application(own, token), http=Connection, log_level="warning", ws="none"
    )
    server = uvicorn.Server(config)
    bound = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=30.0) as client:
            until(lambda: server.started)
            yield client
    finally:
        server.should_exit = True
        thread.join(20.0)
        bound.close()


def ask(
    client, text="hello", robot="arm_0", component="monitor", slo_ms=0, model="m", timeout_s=30.0,
    **more,
):  # fmt: skip
    """The response to a call."""
    headers = caller_headers(Caller(robot, component, workflow="task 1"), slo_ms * 1_000_000)
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    return client.post("/v1/chat/completions", json=body, headers=headers, timeout=timeout_s)


def state(client):
    return client.get("/state").json()


def component(client, name="monitor"):
    return next(one for one in state(client)["components"] if one["name"] == name)


def together(*calls):
    """Runs the calls at the same time; a list of their results."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]
