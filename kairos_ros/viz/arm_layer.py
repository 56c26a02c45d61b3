"""The arms themselves, and what they work on."""

from kairos_ros.viz.fleet_layer import pen
from kairos_ros.viz.scene import Scene
from kairos_ros.viz.shape import Shape


def arms(scene: Scene) -> list[Shape]:
    """Every robot whose looks and joints are known."""
    return [
        shape
        for robot in scene.robots.values()
        if robot.body is not None and len(robot.joints)
        for shape in robot.body.draw(pen("arm", robot), robot.joint_names, robot.joints)
    ]
