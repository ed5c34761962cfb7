# Read by the DEBUG trap of an interrupted run. Status 2 makes bash return from what it is in.
[[ ${BASH_SOURCE[*]} != *'@DIR@/bash'* ]] || \builtin return 2
# The text hasn't been begun.
[[ ! -v CELLD_I || ${BASH_SOURCE[*]} == *'@DIR@/tail'* ]] || \builtin return 0
\builtin trap - DEBUG
[[ :$CELLD_O: == *:extdebug:* ]] || \builtin shopt -u extdebug
[[ $CELLD_F == *T* ]] || \builtin set +T
[[ $CELLD_F == *E* ]] || \builtin set +E
\builtin . '@DIR@/debug'
\builtin return 0
