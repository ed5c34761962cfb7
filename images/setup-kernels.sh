#!/usr/bin/env bash
# Installs kernels for JavaScript, TypeScript and Java below PREFIX: tslab, jjava, and PREFIX/kernels, where celld looks
# for their kernelspecs. Runs after setup-python.sh. Go needs nothing: its kernel comes with celld.
#
#   images/setup-kernels.sh [PREFIX]
#
# What can't be installed is told and left out; celld then says so in /version.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

tslab=1.0.22
jjava=1.0a8

mkdir -p "$prefix/kernels"
prefix=$(cd "$prefix" && pwd)
kernels=$prefix/kernels
# Anew when this script or the prefix is another.
stamp=$(printf '%s' "$prefix" | cat "$0" - | sha256sum)

is_done() { [ "$(cat "$kernels/.$1" 2>/dev/null)" = "$stamp" ]; }
finish() { printf '%s\n' "$stamp" >"$kernels/.$1"; }
if is_done node && is_done java; then
  exit 0
fi

# One at a time: the second finds the work done.
exec 9>"$kernels/.lock"
flock 9

# spec NAME writes the kernelspec on standard input.
spec() {
  mkdir -p "$kernels/$1"
  cat >"$kernels/$1/kernel.json"
}

if ! is_done node; then
  if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    apt_install nodejs npm || true
  fi
  if node=$(command -v node) && command -v npm >/dev/null; then
    say "installing tslab"
    # A local install would break every console.*, hence -g.
    npm install -g --prefix "$prefix/tslab" --no-audit --no-fund --loglevel=error "tslab@$tslab" </dev/null
    for language in javascript typescript; do
      js=
      [ $language = typescript ] || js='"--js", '
      spec $language <<EOF
{
 "argv": ["$node", "$prefix/tslab/bin/tslab", "kernel", $js"--config-path", "{connection_file}"],
 "display_name": "$language (tslab)",
 "language": "$language"
}
EOF
    done
    finish node
  else
    say "JavaScript and TypeScript need node and npm"
  fi
fi

if ! is_done java; then
  if ! command -v java >/dev/null; then
    apt_install openjdk-17-jdk-headless || true
  fi
  if java=$(command -v java) && "$java" --list-modules 2>/dev/null | grep -q '^jdk\.jshell'; then
    say "installing jjava"
    rm -rf "$prefix/jjava"
    python=$prefix/python/bin/python
    [ -x "$python" ] || python=python3
    "$python" -m pip install --no-input --disable-pip-version-check --no-deps --only-binary :all: --quiet --root-user-action ignore \
      --target "$prefix/jjava" "jjava==$jjava" </dev/null
    at=$prefix/jjava/share/jupyter/kernels/java
    spec java <<EOF
{
 "argv": ["$java", "-jar", "$at/jjava-launcher.jar", "$at/jjava.jar", "{connection_file}"],
 "display_name": "Java (jjava)",
 "language": "java",
 "interrupt_mode": "message"
}
EOF
    finish java
  else
    say "Java needs a JDK with JShell, 11 or newer"
  fi
fi
