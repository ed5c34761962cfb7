# Runs after each run's record, with output to descriptor 9: says what the shell's state is. It starts by taking away
# what would disturb it; the next run puts that back.
\builtin eval 'CELLD_N=${FUNCNAME[*]+x}'
\builtin printf '%s %s\n' @MARK@ "$CELLD_N" >&9
\builtin trap -p DEBUG ERR RETURN >&9
\builtin trap - DEBUG ERR RETURN
\builtin set +exvkTt
\builtin unset CELLD_N CELLD_S CELLD_P CELLD_F CELLD_I CELLD_O
\builtin printf '%s\n' @MARK@ >&9
\builtin shopt -p >&9
\builtin printf '%s\n' @MARK@ >&9
\builtin declare -p >&9
\builtin printf '%s\n' @MARK@ >&9
\builtin declare -f >&9
\builtin printf '%s\n' @MARK@ >&9
\builtin declare -F >&9
\builtin printf '%s\n' @MARK@ >&9
\builtin alias -p >&9
\builtin printf '%s\n' @MARK@ >&9
\builtin trap -p >&9
\builtin printf '%s\n' @MARK@ >&9
\builtin set +o >&9
\builtin umask -p >&9
\builtin printf '\\builtin set --' >&9
[[ $# = 0 ]] || \builtin printf ' %q' "$@" >&9
\builtin printf '\n%s\n' @MARK@ >&9
\builtin pwd >&9
@TRAP@
\builtin printf '%s end\n' @MARK@ >&9
