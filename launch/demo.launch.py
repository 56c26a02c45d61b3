"""Simulated arms and the serving node: the fleet of `kairos demo`, without its task driver.

Give an arm a task with: ros2 action send_goal /arm_1/execute_task kairos_ros/action/ExecuteTask
"{instruction: 'open the drawer', scene: drawer-open-v3, seed: 1}"
"""

from kairos_ros.bringup import launch_description, plan

ARGUMENTS = {
    "robots": ("8", "How many simulated arms: arm_1, arm_2, ..."),
    "scheduling": ("wait_ratio", "fifo, least_service, wait_ratio, oldest_task or admit"),
    "record": ("", "Folder of the bag to record the fleet into; empty: no bag"),
    "horizon": ("", "Default horizon policy, such as static:10; empty: as in serving.yaml"),
}


def generate_launch_description():
    return launch_description(
        ARGUMENTS,
        lambda values: plan(
            int(values.pop("robots")), record=values.pop("record", ""), serve=values
        ),
    )
