"""Robot bodies by name, and the robot node's params file."""

import sys

import pytest
import yaml

from kairos_ros.bringup import plan as bringup
from kairos_ros.core.errors import ConfigError
from kairos_ros.nodes.robot.parameters import ROBOT_PARAMETERS, adapter_options
from kairos_ros.robot.adapters.registry import make_adapter

PLUGIN = """
from kairos_ros.robot.adapters.sim.sim import SimAdapter

class Arm(SimAdapter):
    def __init__(self, control_rate_hz, *, port):
        super().__init__(control_rate_hz=control_rate_hz)
        self.port = port

def not_a_robot(control_rate_hz):
    return control_rate_hz
"""
ENTRY_POINTS = """
[kairos_ros.robot_adapters]
arm = arm_plugin:Arm
nothing = arm_plugin:not_a_robot
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """An installed distribution with two adapters."""
    (tmp_path / "arm_plugin.py").write_text(PLUGIN)
    info = tmp_path / "arm_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: arm-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("arm_plugin", None)


def test_an_installed_adapter_is_made_with_its_own_options(plugin):
    arm = make_adapter("arm", 20.0, {"port": "can0"})
    assert arm.port == "can0"
    assert arm.spec.control_rate_hz == 20.0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("leg", {}, "there are .*arm, nothing"),
        ("arm", {}, "missing a required .*'port'"),
        ("arm", {"port": "can0", "speed": 1}, "unexpected keyword argument 'speed'"),
        ("nothing", {}, "not a RobotAdapter"),
    ],
)
def test_an_adapter_that_cannot_be_made_is_refused_with_the_reason(plugin, name, options, said):
    with pytest.raises(ConfigError, match=said):
        make_adapter(name, 30.0, options)


@pytest.mark.slow  # importing MuJoCo starts a process of GLFW's
def test_a_gymnasium_environment_is_configured_by_options_alone():
    options = adapter_options(["env_id=Pusher-v5", "kept_on_hold=[6]"])
    arm = make_adapter("sim", 20.0, options)
    assert (arm.spec.state_dim, arm.spec.action_dim) == (23, 7)


@pytest.mark.parametrize("text", ["env_id", "=Pusher-v5", "images={corner2"])
def test_an_option_that_is_not_name_and_yaml_is_refused(text):
    with pytest.raises(ConfigError, match="adapter option"):
        adapter_options([text])


def test_the_params_file_names_every_parameter_and_states_its_default_where_it_is_not_a_body_s():
    text = (bringup.share() / "config" / "robot.yaml").read_text()
    values = yaml.safe_load(text)["/**"]["ros__parameters"]
    for parameter in ROBOT_PARAMETERS:
        assert f"{parameter.name}:" in text
        if parameter.name in values and not parameter.name.startswith("guard."):
            assert values[parameter.name] == parameter.default
    assert set(values) <= {parameter.name for parameter in ROBOT_PARAMETERS}
