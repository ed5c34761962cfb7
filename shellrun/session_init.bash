# The first thing a session's shell reads.
\exec 3<&-
BASH_ARGV0=bash
\builtin shopt -s expand_aliases
@TRAP@
@STATE@
>|"@DIR@/r/0.$-..@NONCE@"
