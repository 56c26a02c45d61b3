#!/bin/sh
# Makes .venv with the locked dependencies on Python 3.12. Idempotent; called by make, which may name
# another environment (VENV) and its lock file (LOCK).
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv} lock=${LOCK:-requirements.lock}

find_python() {
  for candidate in python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3.12; do
    # a pyenv shim can be on PATH and still fail: only what runs counts
    if path=$(command -v "$candidate" 2>/dev/null) && version=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) \
      && [ "$version" = 3.12 ]; then
      echo "$path"
      return
    fi
  done
}

find_uv() {
  if command -v uv >/dev/null 2>&1 && uv --version >/dev/null 2>&1; then
    command -v uv
    return
  fi
  if [ ! -x build/uv/bin/uv ]; then
    echo "setup: no uv on PATH, installing it into build/uv" >&2
    "${1:-python3}" -m venv build/uv >&2 && build/uv/bin/pip install -q uv >&2
  fi
  echo build/uv/bin/uv
}

python=$(find_python)
uv=$(find_uv "$python") || {
  echo "setup: cannot install uv. Install it (https://docs.astral.sh/uv) or a Python with the venv module, then run make again." >&2
  exit 1
}
if [ -z "$python" ]; then
  echo "setup: no Python 3.12 on PATH or in pyenv, asking uv for one" >&2
  "$uv" python install 3.12 >&2 && python=$("$uv" python find 3.12) || {
    echo "setup: Python 3.12 is needed (ROS 2 and LeRobot need exactly this version) and could not be found or downloaded." >&2
    echo "setup: install python3.12 with its venv module, for example 'apt install python3.12-venv' or 'pyenv install 3.12', then run make again." >&2
    exit 1
  }
fi

if ! "$venv"/bin/python -c 'import sys; assert sys.version_info[:2] == (3, 12)' 2>/dev/null; then
  "$uv" venv --clear --python "$python" "$venv"
fi
echo "setup: installing the locked dependencies (about 6 GB on disk, torch included)"
# not "pip sync": some ROS wheels carry the metadata of a second distribution, which it would remove
"$uv" pip install --python "$venv"/bin/python --overrides tools/overrides.txt -r "$lock"
# linked, so that LeRobot finds policy type kairos; by the setuptools of the lock file
"$uv" pip install --python "$venv"/bin/python --no-deps --no-build-isolation -e ./lerobot_policy_kairos
touch "$venv"/.deps
