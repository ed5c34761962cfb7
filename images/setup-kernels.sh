#!/usr/bin/env bash
# Installs kernels for JavaScript, TypeScript, Java and bash below PREFIX: tslab, jjava, bash_kernel, and PREFIX/kernels,
# where celld looks for their kernelspecs. Runs after setup-python.sh. Go needs nothing: its kernel comes with celld. That
# for bash is used with --bash=kernel only.
#
#   images/setup-kernels.sh [PREFIX]
#
# What can't be installed is told and left out; celld then says so in /version.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

tslab=1.0.22
jjava=1.0a8
bash_kernel=0.10.0
filetype=1.2.0 # of bash_kernel; the rest is in the Python environment

mkdir -p "$prefix/kernels"
prefix=$(cd "$prefix" && pwd -P) # kernelspecs must not go through a link
kernels=$prefix/kernels
# Anew when this script, what it copies or the prefix is another.
here=$(dirname "$0")
stamp=$(printf '%s' "$prefix" | cat "$0" "$here/tslab-sockets.js" "$here/jjava-lossless.py" "$here/bash-kernel.py" - | sha256sum)

is_done() { [ "$(cat "$kernels/.$1" 2>/dev/null)" = "$stamp" ]; }
finish() { printf '%s\n' "$stamp" >"$kernels/.$1"; }
if is_done node && is_done java && is_done bash; then
  exit 0
fi

# One at a time: the second finds the work done.
exec 9>"$kernels/.lock"
flock 9

python=$prefix/python/bin/python
[ -x "$python" ] || python=python3

# pip FOLDER PACKAGE... installs pinned packages into a folder of their own.
pip() {
  local into=$1
  shift
  rm -rf "$into"
  "$python" -m pip install --no-input --disable-pip-version-check --no-deps --only-binary :all: --quiet \
    --root-user-action ignore --target "$into" "$@" </dev/null
}

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
    cp "$here/tslab-sockets.js" "$prefix/tslab/sockets.js"
    typescript=$("$node" -p 'require(process.argv[1]).version' \
      "$prefix/tslab/lib/node_modules/tslab/node_modules/@tslab/typescript-for-tslab/package.json")
    for language in javascript typescript; do
      js='' version=$typescript
      [ $language = typescript ] || js='"--js", ' version="Node.js $("$node" --version)"
      spec $language <<EOF
{
 "argv": ["$node", "-r", "$prefix/tslab/sockets.js", "$prefix/tslab/bin/tslab", "kernel", $js"--config-path", "{connection_file}"],
 "display_name": "$language (tslab)",
 "language": "$language",
 "metadata": {"celld": {"kernel": "tslab $tslab", "version": "$version"}}
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
    pip "$prefix/jjava" "jjava==$jjava"
    version=$("$java" --version | sed -n '1s/^[^ ]* \([^ ]*\).*/\1/p')
    # Without its launcher, which would be a second JVM beside it.
    jar=$prefix/jjava/share/jupyter/kernels/java/jjava.jar
    "$python" "$here/jjava-lossless.py" "$jar"
    spec java <<EOF
{
 "argv": ["$java", "--add-opens", "jdk.jshell/jdk.jshell=ALL-UNNAMED", "-Dfile.encoding=UTF-8", "-XX:+UseSerialGC", "-jar", "$jar", "{connection_file}"],
 "display_name": "Java (jjava)",
 "language": "java",
 "interrupt_mode": "message",
 "metadata": {"celld": {"kernel": "jjava $jjava", "version": "$version"}}
}
EOF
    finish java
  else
    say "Java needs a JDK with JShell, 11 or newer"
  fi
fi

if ! is_done bash && [ -x "$prefix/python/bin/python" ]; then
  say "installing bash_kernel"
  pip "$prefix/bash_kernel" "bash_kernel==$bash_kernel" "filetype==$filetype"
  cp "$here/bash-kernel.py" "$prefix/bash_kernel/kernel.py"
  spec bash <<EOF
{
 "argv": ["$python", "$prefix/bash_kernel/kernel.py", "-f", "{connection_file}"],
 "display_name": "bash (bash_kernel)",
 "language": "bash",
 "metadata": {"celld": {"kernel": "bash_kernel $bash_kernel", "version": "${BASH_VERSION%%[^0-9.]*}"}}
}
EOF
  finish bash
fi
