"""Wheel build for plain Python environments that get ROS 2 from the PyPI wheels.

`colcon build` never runs this file: package.xml says ament_cmake. Here the same CMakeLists.txt is
built and its install tree is laid into the wheel: modules into site-packages, lib/ and share/ under
sys.prefix, which then is an ament prefix. Names, versions and dependencies are in pyproject.toml.
"""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build import build
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent.resolve()
RELOCATABLE = '#!/bin/sh\n"exec" "`dirname $0`/../../bin/python3" "$0" "$@"\n'
"""First lines of an installed executable, both shell and Python: it runs with the Python of the
prefix it lies in."""


class BinaryDistribution(Distribution):
    """The wheel holds compiled type supports."""

    def has_ext_modules(self):
        return True


class BuildRos(build_py):
    """Configures, builds and stages the CMake project."""

    def run(self):
        work = Path(self.get_finalized_command("build").build_temp).resolve()
        stage = work / "stage"
        shutil.rmtree(work, ignore_errors=True)  # each isolated build has a prefix of its own
        work.mkdir(parents=True)
        (work / "COLCON_IGNORE").touch()  # the stage holds a second package.xml
        self._cmake(work / "cmake", stage)
        site = next((stage / "lib").glob("python*/site-packages"))
        target = Path(self.build_lib) / "kairos_ros"
        shutil.rmtree(target, ignore_errors=True)
        unwanted = shutil.ignore_patterns("__pycache__", "*.c")
        shutil.copytree(site / "kairos_ros", target, ignore=unwanted)
        shutil.rmtree(stage / "lib" / site.parent.name)
        for script in (stage / "lib" / "kairos_ros").iterdir():
            script.write_text(RELOCATABLE + script.read_text().split("\n", 1)[1])
        data = {}
        for path in sorted(stage.rglob("*")):
            relative = path.relative_to(stage)
            if path.is_file() and relative.parts[0] in ("lib", "share"):
                data.setdefault(str(relative.parent), []).append(str(path))
        self.distribution.data_files = sorted(data.items())

    def _cmake(self, folder, stage):
        # pip builds in a prefix that is on sys.path, but is not sys.prefix
        wheels = str(Path(find_spec("ament_package").origin).parents[4])
        prefixes = [wheels, *filter(None, [os.environ.get("AMENT_PREFIX_PATH")])]
        env = os.environ | {"AMENT_PREFIX_PATH": os.pathsep.join(prefixes)}
        configure = [
            *("cmake", "-S", HERE, "-B", folder, "-G", "Ninja"),
            f"-DCMAKE_BUILD_TYPE={os.environ.get('CMAKE_BUILD_TYPE', 'Release')}",
            "-DBUILD_TESTING=OFF",
            f"-DCMAKE_PREFIX_PATH={';'.join(prefixes)}",
            f"-DCMAKE_INSTALL_PREFIX={stage}",
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DCMAKE_PROJECT_kairos_ros_INCLUDE={HERE / 'cmake' / 'pypi_wheels.cmake'}",
        ]
        subprocess.run(configure, check=True, env=env)
        subprocess.run(["cmake", "--build", folder], check=True, env=env)
        subprocess.run(["cmake", "--install", folder], check=True, env=env, stdout=sys.stderr)

    def get_outputs(self, include_bytecode=True):
        return [str(path) for path in Path(self.build_lib).rglob("*") if path.is_file()]


setup(
    packages=["kairos_ros"],
    distclass=BinaryDistribution,
    cmdclass={"build_py": BuildRos, "build": build},
    data_files=[("share/kairos_ros", ["package.xml"])],  # replaced by what CMake installs
)
