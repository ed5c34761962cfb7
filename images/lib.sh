# shellcheck shell=bash
# Shared by the setup scripts; sourced, not run. The scripts serve a bare machine through make, and the Dockerfiles.
#
# Each script takes the folder to install into as its argument; else it is CELLD_PREFIX, else the project's .celld.
# Each returns at once when what it installs is there already.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # used by the scripts that source this
prefix=${1:-${CELLD_PREFIX:-$root/.celld}}

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# missing prints those of the given Debian packages that aren't installed.
missing() {
  local package
  for package in "$@"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      printf '%s\n' "$package"
    fi
  done
}

# apt_install installs those of the given Debian packages that aren't there. Only root can; anybody else is told
# what is missing.
apt_install() {
  local want
  mapfile -t want < <(missing "$@")
  if [ ${#want[@]} -eq 0 ]; then
    return 0
  fi
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    say "please install: ${want[*]}"
    return 1
  fi
  say "installing ${want[*]}"
  export DEBIAN_FRONTEND=noninteractive
  if ! ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1; then
    apt_get update
  fi
  # A list from another day may name files that are gone: then a new list, once.
  apt_get install "${want[@]}" || { apt_get update && apt_get install "${want[@]}"; }
}

apt_get() {
  local command=$1
  shift
  apt-get -qq -o DPkg::Lock::Timeout=300 "$command" -y --no-install-recommends "$@" </dev/null >/dev/null
}
