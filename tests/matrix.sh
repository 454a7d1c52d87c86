#!/usr/bin/env bash
# Runs the tests on FastAPI's floor, two versions in between and the newest, each in a new
# environment under .venv/, and prints one line a version. Everything else is the newest that
# goes with it; `.ci/run` is for the lowest of everything.
#
#   tests/matrix.sh                  all of them
#   tests/matrix.sh "fastapi==0.150.*"   this one; pytest's options come from PYTEST_ADDOPTS
set -uo pipefail
cd "$(dirname "$0")/.."

floor=$(grep --only-matching --extended-regexp 'fastapi>=[0-9.]+' pyproject.toml | head -1)
wanted=("$@")
[ "${#wanted[@]}" -gt 0 ] || wanted=("${floor/>=/==}" "fastapi==0.145.*" "fastapi==0.156.*" "fastapi")

versions() {
  "$1/bin/python" -c '
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("fastapi", "starlette", "pydantic", "anyio")))'
}

run() {
  local requirement=$1 place=.venv/matrix/${1//[^a-z0-9.]/_}
  local log=$place.log failed=0
  rm -rf "$place" && mkdir -p .venv/matrix
  {
    python3 -m venv "$place" &&
      "$place/bin/pip" install --quiet --upgrade "pip>=25.1" &&
      "$place/bin/pip" install --quiet --editable ".[all]" "$requirement" --group test
  } >"$log" 2>&1 || { echo "$requirement: not installed, see $log"; return 1; }
  "$place/bin/python" -m pytest -q >>"$log" 2>&1 || failed=1
  echo "$(versions "$place"): $(tail -n 1 "$log")"
  [ "$failed" -eq 0 ] || grep --extended-regexp "^(FAILED|ERROR) tests/" "$log"
  return "$failed"
}

status=0
for requirement in "${wanted[@]}"; do
  run "$requirement" || status=1
done
exit "$status"
