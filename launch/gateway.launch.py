"""One queue before all models that judge and plan: `kairos gateway` on this host."""

from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import gateway, whole_number

ARGUMENTS = {
    "servers": (
        "embedded:factory_judge",
        "Behind it, separated by commas: http://HOST:PORT/v1 of a server, or embedded:NAME",
    ),
    "order": ("latest_start", "Which call goes first; kairos gateway --help lists the orders"),
    "dispatch": ("fewest_calls", "Which server gets it; kairos gateway --help lists them, too"),
    "port": ("8380", "Of this host, where it listens"),
}


def generate_launch_description():
    return launch_description(ARGUMENTS, _nodes)


def _nodes(values):
    servers = [one.strip() for one in values["servers"].split(",") if one.strip()]
    port = whole_number("port", values["port"])
    return [gateway(servers, order=values["order"], dispatch=values["dispatch"], port=port)]
