"""vLLM on a CPU, of its own process, with a tiny Qwen2.5-VL of random weights: a real server that
reads pictures. What it says is worth nothing; what it takes, refuses and reports is vLLM's.

It needs an environment of its own, whose Python is named by KAIROS_VLLM (docs/gateway.md). Prints
its URL as a line of JSON when it is up, and leaves when its standard input ends.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.support.servers import ROOT
from kairos_ros.core.errors import ConfigError

MODEL = "qwen"
"""What the server calls it."""
PYTHON = "KAIROS_VLLM"
UP_WITHIN_S = 400.0
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
TEXT = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
    "max_position_embeddings": 2048,
}
"""A head of 64, since vLLM's attention on a CPU knows none of 16."""
VISION = {"hidden_size": 128, "intermediate_size": 256, "num_heads": 2, "out_hidden_size": 256}


def python() -> str:
    """Of an environment with vLLM. Raises ConfigError where none is named."""
    named = os.environ.get(PYTHON, "")
    if not Path(named).is_file():
        raise ConfigError(f"{PYTHON} is {named!r}; name the Python of an environment with vLLM")
    return named


def main() -> int:
    interpreter = python()
    with tempfile.TemporaryDirectory(prefix="kairos-vllm-") as folder:
        save_model(Path(folder))
        with socket.create_server(("127.0.0.1", 0)) as bound:
            port = bound.getsockname()[1]
        command = [
            *(interpreter, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", folder, "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--dtype", "float32", "--enforce-eager"),
            *("--max-model-len", "1024", "--max-num-seqs", "8"),
        ]
        server = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, cwd=folder, stdout=sys.stderr
        )
        try:
            url = f"http://127.0.0.1:{port}/v1"
            _wait(url, server)
            print(json.dumps(url), flush=True)
            sys.stdin.read()
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(20.0)
            except subprocess.TimeoutExpired:
                server.kill()
    return 0


def save_model(folder: Path) -> None:
    """The same weights every time."""
    sys.path.insert(0, str(ROOT / "test" / "support" / "policies"))
    import torch
    from tiny_families.eo1 import save_qwen

    torch.manual_seed(0)
    save_qwen(folder, TEXT, VISION)


def _wait(url: str, server: "subprocess.Popen[Any]") -> None:
    end = time.monotonic() + UP_WITHIN_S
    while time.monotonic() < end:
        if server.poll() is not None:
            raise ConfigError(f"vLLM ended with status {server.returncode}")
        try:
            if httpx.get(f"{url}/models", timeout=5.0).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise ConfigError(f"vLLM is not up after {UP_WITHIN_S:g} s")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ConfigError as error:
        sys.exit(str(error))
