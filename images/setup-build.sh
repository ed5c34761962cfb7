#!/usr/bin/env bash
# What building celld and running its tests needs: Go, a C compiler for the race detector, Python.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

want=()
need() { command -v "$1" >/dev/null || want+=("$2"); }
need gcc gcc
need python3 python3
echo '#include <stdlib.h>' | "${CC:-gcc}" -E - >/dev/null 2>&1 || want+=(libc6-dev)
[ ${#want[@]} -eq 0 ] || apt_install "${want[@]}"

have=$(go env GOVERSION 2>/dev/null) || have=none
need_go=go$(sed -n 's/^go //p' "$root/go.mod")
if [ "$(printf '%s\n%s\n' "$need_go" "$have" | sort -V | head -n 1)" != "$need_go" ]; then
  say "Go ${need_go#go} or newer is needed; found: $have"
  exit 1
fi
