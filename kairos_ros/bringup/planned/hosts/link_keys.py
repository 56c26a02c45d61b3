"""Whether a host has the keys of its links to other hosts, before what needs them is started."""

from collections.abc import Iterable

from kairos_ros.bringup.process_spec import ProcessKind, ProcessSpec
from kairos_ros.core.placement.served_plan import read_served_plan
from kairos_ros.engine.client.planned_link import check_dialling, check_listening

KEY = "--key"


def check_keys(specs: Iterable[ProcessSpec]) -> None:
    """Of what a plan puts on this host: serving nodes and engine workers. Raises ConfigError, with
    what to do, where one of them lacks a key."""
    for spec in specs:
        if spec.executable == "serving_node":
            for engine in read_served_plan(spec.parameters["plan"]).engines:
                if engine.endpoint:
                    check_dialling(engine.endpoint, engine.host, here=engine.host == spec.host)
        elif spec.kind is ProcessKind.WORKER and KEY in spec.arguments:
            check_listening(spec.arguments[spec.arguments.index(KEY) + 1])
