#!/usr/bin/env bash
# Installs what only tests use, each in a folder of its own below PREFIX: the public SDKs (sdk), web servers of other
# people (apps), and the Jupyter Kernel Gateway (gateway), which PREFIX/python runs: what it needs is there.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

images=$root/images
node_needed=20.19.0

# stamp FOLDER prints what changes when the folder has to be installed anew.
stamp() { cat "$images/$1"/* "$0" | sha256sum; }

# is_done FOLDER PART says whether a part, python or node, is there as it is wanted; finish says that it is.
is_done() { [ "$(cat "$prefix/$1/.$2" 2>/dev/null)" = "$(stamp "$1")" ]; }
finish() { stamp "$1" >"$prefix/$1/.$2"; }

is_done sdk python && is_done sdk node && is_done apps python && is_done apps node && is_done gateway python && exit 0

# One at a time: the second finds the work done.
mkdir -p "$prefix"/{sdk,apps,gateway}
exec 9>"$prefix/gateway/.lock"
flock 9

# pip PYTHON FOLDER OPTION... installs what the folder's requirements.txt names.
pip() {
  local python=$1 folder=$2
  shift 2
  say "installing what images/$folder/requirements.txt names"
  "$python" -m pip install --no-input --disable-pip-version-check --only-binary :all: --quiet \
    -r "$images/$folder/requirements.txt" "$@" </dev/null
}

for folder in sdk apps; do
  if ! is_done $folder python; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || apt_install python3 python3-venv
    rm -rf "${prefix:?}/$folder/python"
    python3 -m venv "$prefix/$folder/python"
    pip "$prefix/$folder/python/bin/python" $folder
    finish $folder python
  fi
done

if ! is_done gateway python; then
  rm -rf "$prefix/gateway/lib"
  pip "$prefix/python/bin/python" gateway --no-deps --target "$prefix/gateway/lib"
  finish gateway python
fi

node_found=$(node --version 2>/dev/null) || node_found=none
if [ "$(printf 'v%s\n%s\n' "$node_needed" "$node_found" | sort -V | head -n 1)" != "v$node_needed" ] ||
  ! command -v npm >/dev/null; then
  say "the tests of the JavaScript SDK and of the proxy with Vite need npm and Node.js $node_needed or newer; found: $node_found"
  exit 0
fi
for folder in sdk apps; do
  if ! is_done $folder node; then
    say "installing what images/$folder/package.json names"
    mkdir -p "$prefix/$folder/node"
    cp "$images/$folder"/package*.json "$prefix/$folder/node/"
    # Not npm ci, which wants even those optional packages in the lock file that can't be had.
    (cd "$prefix/$folder/node" && npm install --ignore-scripts --no-audit --no-fund --loglevel=error </dev/null)
    finish $folder node
  fi
done
