#!/usr/bin/env bash
# The programs of a private MariaDB server; nothing starts by itself. Whoever can't install them does without SQL.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

if [ -x /usr/sbin/mariadbd ] && command -v mariadb-install-db >/dev/null && command -v mariadb >/dev/null; then
  exit 0
fi
apt_install mariadb-server-core mariadb-client-core || say "without them SQL needs a server of yours"
