#!/usr/bin/env bash
# Installs the Jupyter Kernel Gateway into PREFIX/gateway, for PREFIX/python to run: what it needs is there. Only tests
# use it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

wanted="jupyter_kernel_gateway==3.0.1 --hash=sha256:9f74a2f4ff9f03737bcab79f44ae0f6473ee32deb30fce00b8f05adcdd023f03"
into=$prefix/gateway
[ "$(cat "$into/.done" 2>/dev/null)" = "$wanted" ] && exit 0

# One at a time: the second finds the work done.
mkdir -p "$into"
exec 9>"$into/.lock"
flock 9
[ "$(cat "$into/.done" 2>/dev/null)" = "$wanted" ] && exit 0
say "installing the Kernel Gateway"
rm -rf "${into:?}/lib"
printf '%s\n' "$wanted" >"$into/requirements.txt"
"$prefix/python/bin/pip" install --no-input --disable-pip-version-check --only-binary :all: --quiet --no-deps --require-hashes \
  --target "$into/lib" -r "$into/requirements.txt" </dev/null
printf '%s\n' "$wanted" >"$into/.done"
