"""What a plan puts on this host: `kairos fleet up FILE --planned`, of several hosts with --host."""

from kairos_ros.bringup.launch_files import COMMON_ARGUMENTS, launch_description
from kairos_ros.bringup.process_spec import ProcessKind, ProcessSpec
from kairos_ros.core.fleet_names import COMMON

ARGUMENTS = {
    "file": ("", "Fleet file, or the name of a shipped one, such as emulated"),
    "host": ("", "Name of this host in server_cluster.hosts; empty: the fleet is on one host"),
    "out": ("runs", "Where the folder of the log files is made"),
    "namespace": COMMON_ARGUMENTS["namespace"],
}


def generate_launch_description():
    return launch_description(ARGUMENTS, _nodes)


def _nodes(values):
    arguments = ["fleet", "up", values.get("file", ""), "--planned", "--out", values["out"]]
    for option in ("host", "namespace"):
        arguments += [f"--{option}", values[option]] if values.get(option) else []
    return [
        ProcessSpec("kairos", "fleet", COMMON, arguments=tuple(arguments), kind=ProcessKind.FLEET)
    ]
