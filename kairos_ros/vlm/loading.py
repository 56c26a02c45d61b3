"""From a component's model, as the fleet file names it, to a judge."""

import os
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.extras import require
from kairos_ros.host.share import share
from kairos_ros.vlm.embedded.planner import MODEL as PLANNER
from kairos_ros.vlm.embedded.planner import RulePlanner
from kairos_ros.vlm.judge import Judge

EMBEDDED, ENDPOINT, IN_PROCESS = "embedded:", "openai:", "transformers:"
SYSTEM1 = "system1"
"""The policy of the robots itself; `system1:NAME` where its serving node has several."""
KEY = "KAIROS_VLM_KEY"
"""Environment variable with the key of an endpoint; keys do not belong into a fleet file."""


def load_judge(model: str, timeout_s: float = 2.0) -> Judge:
    """The judge called `model`.

    `embedded:planner` is the planner that ships, any other `embedded:NAME` models/NAME of the
    installed package, `embedded:/FOLDER` any such folder;
    `openai:http://HOST:PORT/v1#MODEL` an OpenAI-compatible endpoint, `transformers:FOLDER` a
    vision-language model in this process, `system1` or `system1:NAME` the policy that a serving
    node of this host serves. `timeout_s` bounds each call of an endpoint and of a policy.

    Raises ConfigError for other names and for a model that does not load.
    """
    if model == PLANNER:
        return RulePlanner()
    if model.startswith(EMBEDDED):
        from kairos_ros.vlm.embedded.embedded_judge import EmbeddedJudge
        from kairos_ros.vlm.embedded.tiny_vlm import read_model

        name = model.removeprefix(EMBEDDED)
        return EmbeddedJudge(*read_model(share() / "models" / name))  # absolute: that folder
    if model.startswith(ENDPOINT):
        from kairos_ros.vlm.endpoint.endpoint_judge import Endpoint, EndpointJudge

        url, _, name = model.removeprefix(ENDPOINT).partition("#")
        return EndpointJudge(Endpoint(url, name, os.environ.get(KEY, ""), timeout_s))
    if model.startswith(IN_PROCESS):
        require("torch", "transformers")
        from kairos_ros.vlm.in_process import InProcessJudge

        return InProcessJudge(Path(model.removeprefix(IN_PROCESS)).expanduser())
    if model == SYSTEM1 or model.startswith(f"{SYSTEM1}:"):
        from kairos_ros.vlm.system1_judge import System1Judge

        return System1Judge(model.removeprefix(SYSTEM1).removeprefix(":"), timeout_s)
    raise ConfigError(
        f"judge {model!r} is unknown; use {EMBEDDED}factory_judge, {ENDPOINT}http://HOST:PORT/v1#MODEL"
        f", {IN_PROCESS}FOLDER or {SYSTEM1}"
    )
