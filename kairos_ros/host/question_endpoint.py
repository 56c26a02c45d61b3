"""Where judges of this host ask a policy of this host: a socket that only this user can reach."""

import os

from kairos_ros.host.user_folder import user_folder


def question_endpoint(policy: str) -> str:
    """ipc:// endpoint of the engine that serves the policy of this name ("" of the only one), in
    this ROS domain. Raises ConfigError where its folder is another's."""
    domain = os.environ.get("ROS_DOMAIN_ID") or 0
    return f"ipc://{user_folder('kairos-questions')}/{domain}.{policy or 'policy'}.sock"
