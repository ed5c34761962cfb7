#!/usr/bin/env bash
# What celld calls from Debian: bash and the programs that its commands, sessions and terminals are used to.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# What is there from elsewhere is not installed again.
want=()
need() { command -v "$1" >/dev/null || want+=("$2"); }
need bash bash
need ps procps
need ss iproute2
need setsid util-linux
need git git
need less less
need vim vim
need tmux tmux
[ -e /etc/ssl/certs/ca-certificates.crt ] || want+=(ca-certificates)
[ ${#want[@]} -eq 0 ] || apt_install "${want[@]}"
