#!/bin/sh
# Makes .venv, unless a usable one is there, and installs what LOCK_FILE lists, each file checked against its hashes;
# then refold itself, editable. pip refuses an editable install in the same step as hashes, so it is a step of its own:
# without dependencies (they are there) and without build isolation (the build backend is in the lock, too).
# Uses uv when it is installed, else python -m venv and pip.
#
# usage: tools/setup.sh LOCK_FILE
set -eu
cd "$(dirname "$0")/.."
lock=$1
venv_python=.venv/bin/python

suits() {
  "$1" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do
    if suits "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  echo "refold needs Python 3.11 or newer; python3 here is: $(python3 --version 2>&1 || true)." >&2
  echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2
  return 1
}

if command -v uv >/dev/null 2>&1; then with_uv=yes; else with_uv=no; fi

if ! suits "$venv_python"; then
  python=$(find_python)
  if [ $with_uv = yes ]; then
    uv venv --quiet --clear --python "$("$python" -c 'import sys; print(sys.executable)')" .venv
  elif ! "$python" -m venv --clear .venv; then
    echo "$python cannot make a virtual environment: install its venv module (Debian: python3-venv), or uv." >&2
    exit 1
  fi
fi

echo "installing what $lock lists into .venv ..."
if [ $with_uv = yes ]; then
  uv pip install --quiet --python "$venv_python" --require-hashes -r "$lock"
  uv pip install --quiet --python "$venv_python" --no-deps --no-build-isolation --editable .
else
  "$venv_python" -m pip --version >/dev/null 2>&1 || "$venv_python" -m ensurepip >/dev/null
  pip="$venv_python -m pip --disable-pip-version-check --quiet"
  $pip install --require-hashes -r "$lock"
  $pip install --no-deps --no-build-isolation --editable .
fi
