"""The package as pip builds it from a checkout, in the isolation that pip builds in."""

import os
import re
import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOT_SOURCE = shutil.ignore_patterns(".*", "build", "runs", "__pycache__")


FEW = re.compile(r"^  (?:msg|srv|action)/(?!ActionChunk|Release)\w+\.\w+\n", re.MULTILINE)
"""Interfaces left out of this build: each takes seconds of a compiler, as colcon's build did."""


@pytest.mark.timeout(900)
def test_pip_builds_a_wheel_with_everything_that_colcon_installs(tmp_path):
    """As `pip install ./kairos_ros` does it, which is how a host without ROS gets a worker."""
    source, environment = tmp_path / "source", tmp_path / "environment"
    shutil.copytree(ROOT, source, ignore=NOT_SOURCE)
    recipe = source / "CMakeLists.txt"
    text, left_out = FEW.subn("", recipe.read_text())
    assert left_out > 15
    recipe.write_text(text)
    try:
        venv.create(environment, with_pip=True)
    except subprocess.CalledProcessError:
        pytest.skip("this Python cannot make an environment with pip")
    line = [environment / "bin" / "pip", "wheel", "--no-deps", "-w", tmp_path, source]
    env = os.environ | {"CMAKE_BUILD_TYPE": ""}  # no optimisation: nobody runs it
    built = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())

    def sources(folder: str) -> set[str]:
        found = (path.relative_to(source) for path in (source / folder).rglob("*"))
        return {str(path) for path in found if (source / path).is_file()}

    assert not sources("kairos_ros") - names
    data = next(name for name in names if name.endswith("share/kairos_ros/package.xml"))
    share = data.removesuffix("package.xml")
    for folder in ("config", "launch", "models"):
        assert not {f"{share}{name}" for name in sources(folder)} - names
    programs = {path.name for path in (Path(ROOT, ".venv", "lib", "kairos_ros")).iterdir()}
    prefix = share.removesuffix("share/kairos_ros/")
    assert {f"{prefix}lib/kairos_ros/{name}" for name in programs} <= names
    assert any(name.startswith("kairos_ros/msg/_action_chunk") for name in names)
