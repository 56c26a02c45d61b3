#!/bin/sh
# Resolves both lock files again: from pyproject.toml, and from the same with Jazzy's names for Kilted's.
set -eu
cd "$(dirname "$0")/.."
uv=$(command -v uv || echo build/uv/bin/uv)
compile() { "$uv" pip compile -q --no-header --no-annotate --overrides tools/overrides.txt --python .venv/bin/python "$@"; }

compile pyproject.toml --all-extras --group dev -o requirements.lock

# what ament-cmake-ros-core is in Kilted is in ament-cmake-ros there, whose wheels do not name what they need
input=build/jazzy.in
{
  sed -n 's/^ros-kilted-\([a-z0-9-]*\)==.*/ros-jazzy-\1/p' requirements.lock | grep -v ament-cmake-ros-core
  for name in ament-cmake-ros ament-cmake-gmock ament-cmake-gtest ament-cmake-pytest gmock-vendor gtest-vendor \
    domain-coordinator python-cmake-module; do
    echo "ros-jazzy-$name"
  done
  grep -v '^ros-' requirements.lock
} >"$input"
compile "$input" -o requirements-jazzy.lock
