# Read by the trap that interrupts a run, with function tracing on. Its status says whether the run's text is being
# executed: then the trap returns from it, and the DEBUG trap set here makes all that called it return too. Nothing
# may follow that trap here: it would be the first to be returned from.
if [[ -v CELLD_S && ${BASH_SOURCE[*]} == *'@DIR@/bash'* ]]
then
# It has been told already, and waited for something since.
\builtin return 0
elif [[ ${BASH_SOURCE[*]} == *'@DIR@/bash'* ]]
then
CELLD_S=130 CELLD_O=$BASHOPTS
\builtin trap -p DEBUG >|'@DIR@/debug'
\builtin shopt -s extdebug
\builtin trap '\builtin . "@DIR@/unwind"' DEBUG
elif [[ ! -v CELLD_S && ${BASH_SOURCE[*]} == *'@DIR@/w'* ]]
then
# The text is about to be read: its first command will be returned from.
CELLD_I=1 CELLD_S=130 CELLD_O=$BASHOPTS
\builtin trap -p DEBUG >|'@DIR@/debug'
\builtin shopt -s extdebug
\builtin trap '\builtin . "@DIR@/unwind"' DEBUG
\builtin return 1
else
# Not begun, or over: w looks at CELLD_I.
[[ $CELLD_F == *T* ]] || \builtin set +T
[[ $CELLD_F != *x* ]] || \builtin set -x
[[ $CELLD_F != *e* ]] || \builtin set -e
CELLD_I=1 CELLD_S=${CELLD_S-130}
\builtin unset CELLD_F
\builtin return 1
fi
