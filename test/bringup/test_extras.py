"""What is said where a package of an extra is missing."""

import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.worker.loading import load_engine
from kairos_ros.host.extras import EXTRAS, explained, require

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
INDIRECT = {"transformers"}
"""LeRobot brings them."""


@pytest.fixture
def without(monkeypatch):
    """Makes modules that are installed look as if they were not."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(scope="module")
def distributions():
    """Distributions by module: it takes half a second to find them."""
    return packages_distributions()


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_the_modules_that_are_said_to_come_with_it(extra, distributions):
    requirements = " ".join(PROJECT["optional-dependencies"][extra])
    for module in set(EXTRAS[extra]) - INDIRECT:
        known = {name.lower().replace("_", "-") for name in distributions[module]}
        assert any(name in requirements for name in known), module


def test_a_program_says_what_to_install_instead_of_a_traceback(without, capsys):
    without("rosbags")
    with pytest.raises(SystemExit, match="2"), explained("recorder_node"):
        import rosbags.rosbag2  # noqa: F401
    said = capsys.readouterr().err
    assert said.startswith("recorder_node: ")
    assert "no module rosbags, which comes with the extra 'eval'; docs/install.md" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["no_such_module", "yaml.no_such_module", "rich.no_such_module"])
def test_any_other_import_that_fails_is_an_error_of_ours(name):
    with pytest.raises(ModuleNotFoundError), explained("recorder_node"):
        __import__(name)


def test_what_is_needed_late_is_asked_for_early(without):
    require("matplotlib", "pandas")
    without("pandas")
    with pytest.raises(ConfigError, match="no module pandas"):
        require("matplotlib", "pandas")


def test_a_policy_without_torch_is_refused_for_good(without):
    """A ModuleNotFoundError would end the worker as broken, and it would be started again."""
    without("torch")
    policy = str(Path(__file__).parents[2] / "models" / "so101_reach")
    with pytest.raises(ConfigError, match="no module torch, which comes with the extra 'engine'"):
        load_engine(EngineOptions(policy=policy), lambda _: None)
