"""kairos_ros: serve big action models to a fleet of robots from shared GPUs, over ROS 2."""

from pkgutil import extend_path

# rosidl installs kairos_ros.msg, .srv and .action into the same package directory; extending the
# path lets a source checkout see the generated modules of the installed copy.
__path__ = extend_path(__path__, __name__)
