# Runs after each run's record: says on descriptor 9 what the shell's state is, and takes away what would disturb us; the
# next run puts that back. BASHOPTS and SHELLOPTS, among the variables, are the options. What a user's trap prints
# between two commands must not get among the functions: they have a redirection of their own.
{ \builtin printf '%s\n' @MARK@
\builtin trap -p
\builtin trap - DEBUG ERR RETURN
\builtin set +exvkTt
\builtin unset CELLD_S CELLD_P CELLD_F CELLD_I CELLD_O
\builtin alias -p
\builtin printf '%s ' '\builtin set --' "${@@Q}" '
'
\builtin umask -p
\builtin declare -p
\builtin declare -F; } >&9
\builtin declare -f >&9
\builtin printf '%s end\n' @MARK@ >&9
