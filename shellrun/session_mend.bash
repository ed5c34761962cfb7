# Read in posix mode, where no function can stand in front of ., when a function called builtin has swallowed what
# follows a run. Shows that function and takes it away; the next run puts it back.
( \unset -f declare
\declare -f builtin ) >|'@DIR@/builtin'
\unset -f builtin
[[ :$CELLD_O: == *:posix:* ]] || \builtin set +o posix
for CELLD_N in expand_aliases inherit_errexit shift_verbose
do
if [[ :$CELLD_O: == *:$CELLD_N:* ]]
then \builtin shopt -s $CELLD_N
else \builtin shopt -u $CELLD_N
fi
done
{ \builtin set -T; \builtin . '@DIR@/tail'; } 9>'@DIR@/s'
