"""The edge serving node: one batching engine for every robot that announces itself."""

from kairos_ros.bringup.launch_files import launch_description
from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.serving_arguments import SERVING_ARGUMENTS, serving_parameters


def generate_launch_description():
    return launch_description(SERVING_ARGUMENTS, _nodes)


def _nodes(values):
    return [serving(**serving_parameters(values))]
