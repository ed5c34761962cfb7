#!/bin/sh
# Installs Jupyter Server, a Python kernel and the usual libraries into PREFIX/python, a virtual environment.
#
#   images/setup-python.sh [PREFIX]
#
# PREFIX is the argument, else CELLD_PREFIX, else .celld in the project's root. PYTHON names the interpreter to use,
# default python3, 3.11 or newer. Does nothing, at once, when all is there already. As root on Debian it installs
# what python3 lacks (python3-venv) by apt.
#
# It takes 45 s of one core and 490 MB on disk; a second call takes no time.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
requirements=$here/python-requirements.txt
prefix=${1:-${CELLD_PREFIX:-$(dirname "$here")/.celld}}
python=${PYTHON:-python3}

mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd -P) # kernelspecs must not go through a link
venv=$prefix/python
spec=$venv/share/jupyter/kernels/python3
want=$(sha256sum <"$requirements")
want_spec=$(cat "$here/python-kernel.py" "$0" | sha256sum)

is_installed() {
	[ -x "$venv/bin/jupyter-server" ] && [ "$(cat "$venv/.celld-stamp" 2>/dev/null)" = "$want" ] &&
		"$venv/bin/python" -c pass 2>/dev/null
}
is_done() {
	is_installed && [ "$(cat "$spec/.celld-stamp" 2>/dev/null)" = "$want_spec" ]
}

write_spec() {
	# The kernel's `!pip` and `!python` are the environment's. debugpy would print notes about frozen modules.
	cp "$here/python-kernel.py" "$spec/kernel.py"
	cat >"$spec/kernel.json" <<EOF
{
 "argv": ["$venv/bin/python", "{resource_dir}/kernel.py", "-f", "{connection_file}"],
 "display_name": "Python 3",
 "language": "python",
 "metadata": {"debugger": true, "celld": {"kernel": "$("$venv/bin/python" -c 'import ipykernel; print("ipykernel", ipykernel.__version__)')", "version": "$("$venv/bin/python" -c 'import platform; print(platform.python_version())')"}},
 "env": {
  "PATH": "$venv/bin:\${PATH}",
  "PYDEVD_DISABLE_FILE_VALIDATION": "1"
 }
}
EOF
	echo "$want_spec" >"$spec/.celld-stamp"
}

is_done && exit 0

# One at a time: the second finds the work done.
exec 9>"$prefix/.python.lock"
flock 9
if is_installed; then
	write_spec
	exit 0
fi

can_make_venv() {
	"$python" -c 'import ensurepip, venv' 2>/dev/null
}
if ! can_make_venv && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get -o DPkg::Lock::Timeout=300 -q update
	apt-get -o DPkg::Lock::Timeout=300 -q -y install --no-install-recommends python3 python3-venv
fi
if ! can_make_venv; then
	echo "setup-python: $python with the modules venv and ensurepip is needed (Debian: python3-venv)" >&2
	exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
	echo "setup-python: Python 3.11 or newer is needed, $python is $("$python" -V 2>&1)" >&2
	exit 1
fi

rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/pip" install --no-input --disable-pip-version-check --only-binary :all: --quiet -r "$requirements"

echo "$want" >"$venv/.celld-stamp"
write_spec
