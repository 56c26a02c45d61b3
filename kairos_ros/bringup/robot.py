"""Which node runs one robot: the plan of robot.launch.py."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kairos_ros.bringup.plan import images_option, robot
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.core.errors import ConfigError
from kairos_ros.host.share import share


def one_robot(
    name: str,
    *,
    adapter: str = "",
    contract: str = "",
    adapter_options: str = "",
    cameras: str = "",
    control_rate_hz: str = "",
    **parameters: Any,
) -> ProcessSpec:
    """One robot node, of launch arguments.

    Args:
        name: its namespace.
        adapter: its body; empty: ros2 where there is a contract, else sim.
        contract: of an arm behind ROS 2 drivers: a file, or the name of a shipped one.
        adapter_options: what parameter `adapter_options` lists, separated by `;`.
        cameras: of a simulated arm, as `robot.cameras_text` reads them.
        control_rate_hz: empty: as in the params file.
        parameters: more of the node's.

    Raises ConfigError for arguments that do not go together.
    """
    adapter = adapter or ("ros2" if contract else "sim")
    options = [text.strip() for text in adapter_options.split(";") if text.strip()]
    if contract:
        if adapter != "ros2":
            raise ConfigError(f"adapter is {adapter!r}, but a contract is for ros2: leave out one")
        # relative to where the launch was typed, as every file on a command line
        file = Path(contract).expanduser()
        options.append(f"contract={json.dumps(str(file.resolve()) if file.exists() else contract)}")
    if cameras:
        if adapter != "sim":
            raise ConfigError(
                f"cameras are those of a simulated arm; adapter {adapter!r} has them from its "
                "contract or its adapter_options"
            )
        options.append(images_option(cameras))
    if control_rate_hz:
        parameters["control_rate_hz"] = _number("control_rate_hz", control_rate_hz)
    spec = robot(name, adapter=adapter, adapter_options=options, **parameters)
    metaworld = adapter == "sim" and not any(text.startswith("env_id=") for text in options)
    return spec if metaworld else replace(spec, params_file=share() / "config" / "arm.yaml")


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"argument {name} is {text!r}; say a number, such as 30") from None
