#!/bin/sh
# Builds the ROS interfaces into .venv (or VENV), which is an ament prefix with the PyPI ROS wheels, and links
# the Python sources there. On a machine with ROS 2 installed, colcon builds the same CMake project.
set -eu
cd "$(dirname "$0")/.."
venv=$PWD/${VENV:-.venv}
build=build${ROS:+/$ROS}
[ "$build" != build/kilted ] || build=build
log=$build/cmake.log
mkdir -p "$build"
echo "build: ROS interfaces ($log)"
export AMENT_PREFIX_PATH="$venv" PATH="$venv/bin:$PATH"
unset CMAKE_PREFIX_PATH COLCON_PREFIX_PATH PYTHONPATH ROS_DISTRO || true

# build_project PROJECT SOURCES BUILD [CMAKE OPTION...]
build_project() {
  project=$1 sources=$2 folder=$3
  shift 3
  cmake -S "$sources" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF "$@" \
    -DCMAKE_PREFIX_PATH="$venv" -DCMAKE_INSTALL_PREFIX="$venv" -DPython3_EXECUTABLE="$venv/bin/python" \
    -DCMAKE_PROJECT_"$project"_INCLUDE="$PWD/cmake/pypi_wheels.cmake" &&
    cmake --build "$folder" && cmake --install "$folder"
}

# an overlay stands in for a package that the wheels lack; a genuine one in .venv is left alone
overlays() {
  for sources in overlays/*/; do
    name=$(basename "$sources")
    if [ ! -e "$venv/share/$name/package.xml" ] || cmp -s "$venv/share/$name/package.xml" "$sources/package.xml"; then
      build_project "$name" "$sources" "$build/$name" || return 1
    fi
  done
}

# Bytecode of what programs import, beside the build: of all that is installed, it would take four times as long.
[ "$venv" != "$PWD/.venv" ] || "$venv"/bin/python -c '
import hypothesis, lerobot.policies, matplotlib.pyplot, metaworld, ray, rclpy.node, rosbags.rosbag2' >/dev/null 2>&1 &

{
  overlays && build_project kairos_ros . "$build/cmake" -DKAIROS_LINK_SOURCES=ON
} >"$log" 2>&1 || { tail -40 "$log" >&2; echo "build: failed, see $log" >&2; exit 1; }
# the console scripts of [project.scripts], which pip would make
for exe in "$venv"/lib/kairos_ros/*; do ln -sf "../lib/kairos_ros/$(basename "$exe")" "$venv/bin/$(basename "$exe")"; done
wait
touch "$venv/.built"
