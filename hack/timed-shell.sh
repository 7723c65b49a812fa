#!/usr/bin/env bash
# The shell of `make TIMES=FILE`: runs a command of the Makefile, and adds the target, the seconds, and the processor
# seconds (user, system) that it took to FILE.
#
#   hack/timed-shell.sh FILE TARGET -c COMMAND
file=$1 target=$2
shift 2
TIMEFORMAT="$target	%R	%U	%S"
exec 3>&1 4>&2
times=$( { time /bin/sh "$@" 1>&3 2>&4; } 2>&1 )
rc=$?
[ -z "$target" ] || printf '%s\n' "$times" >>"$file"
exit $rc
