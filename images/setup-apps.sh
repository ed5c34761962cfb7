#!/usr/bin/env bash
# Installs web servers of other people, Vite and JupyterLab, into PREFIX/apps. Only tests use them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

apps=$root/images/apps
into=$prefix/apps
node_needed=20.19.0
stamp=$(cat "$apps"/* "$0" | sha256sum)

# is_done says whether a part, python or node, is there as it is wanted.
is_done() { [ "$(cat "$into/.$1" 2>/dev/null)" = "$stamp" ]; }
is_done python && is_done node && exit 0

# One at a time: the second finds the work done.
mkdir -p "$into"
exec 9>"$into/.lock"
flock 9

if ! is_done python; then
  python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3 python3-venv
  say "installing JupyterLab"
  rm -rf "$into/python"
  python3 -m venv "$into/python"
  "$into/python/bin/pip" install --no-input --disable-pip-version-check --only-binary :all: --quiet \
    -r "$apps/requirements.txt" </dev/null
  printf '%s\n' "$stamp" >"$into/.python"
fi

node_found=$(node --version 2>/dev/null) || node_found=none
if [ "$(printf 'v%s\n%s\n' "$node_needed" "$node_found" | sort -V | head -n 1)" != "v$node_needed" ] ||
  ! command -v npm >/dev/null; then
  say "the tests of the proxy with Vite need npm and Node.js $node_needed or newer; found: $node_found"
elif ! is_done node; then
  say "installing Vite"
  mkdir -p "$into/node"
  cp "$apps/package.json" "$apps/package-lock.json" "$into/node/"
  (cd "$into/node" && npm install --ignore-scripts --no-audit --no-fund --loglevel=error </dev/null)
  printf '%s\n' "$stamp" >"$into/.node"
fi
