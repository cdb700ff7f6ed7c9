#!/usr/bin/env bash
# Runs the digits trainer as N ranks on this host, through a store that is not part of the job.
set -u

usage() {
    cat <<'TEXT'
Usage: run_digits.sh [-n N] TRAINER [ARGUMENTS...]

Starts N ranks [4] of TRAINER, the compiled digits_trainer, and passes ARGUMENTS on.

The store: when MASTER_ADDR and MASTER_PORT are both set, the one that is running there. Otherwise the script
starts `rdzv server` on a free port of 127.0.0.1 and stops it at the end.

Environment:
  RDZV                       the rdzv program [rdzv, found in PATH]
  MASTER_ADDR, MASTER_PORT   an existing store

Exit code: 0 when every rank ended with 0, otherwise that of the rank that failed first; 2 for a bad option.
TEXT
}

fail() {
    echo "run_digits.sh: $2" >&2
    exit "$1"
}

count=4
while getopts :n:h-: flag; do
    case "$flag$OPTARG" in
        h* | -help) usage; exit 0 ;;
        n*) count=$OPTARG ;;
        *) fail 2 "unknown option or missing value (see --help)" ;;
    esac
done
shift $((OPTIND - 1))
[[ $count =~ ^[1-9][0-9]{0,3}$ ]] || fail 2 "-n is \"$count\", expected a whole number from 1 to 9999"
[[ $# -ge 1 ]] || fail 2 "no trainer given (see --help)"
trainer=$1
shift
[[ -x $trainer ]] || fail 2 "$trainer is not a program; compile digits_trainer first"

declare -A rank_of=() # by process id, only those still running
server=
timer=
stop_all() {
    # Only our own children, by their ids.
    [[ ${#rank_of[@]} -eq 0 ]] || kill -KILL "${!rank_of[@]}" 2>/dev/null
    [[ -z $timer ]] || kill "$timer" 2>/dev/null
    [[ -z $server ]] || kill -TERM "$server" 2>/dev/null
    wait 2>/dev/null
}
trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ -z ${MASTER_ADDR:-} || -z ${MASTER_PORT:-} ]]; then
    coproc store { exec "${RDZV:-rdzv}" server --bind 127.0.0.1:0; }
    server=$store_PID
    # The server says where it listens once it accepts: no guessing of ports, no waiting by sleep.
    read -r -t 10 first_line <&"${store[0]}" ||
        fail 1 "\"${RDZV:-rdzv} server\" did not start (RDZV names the program)"
    [[ $first_line =~ ^listening\ on\ (.+):([0-9]+)$ ]] ||
        fail 1 "unexpected first line of the server: $first_line"
    MASTER_ADDR=${BASH_REMATCH[1]}
    MASTER_PORT=${BASH_REMATCH[2]}
fi
export MASTER_ADDR MASTER_PORT WORLD_SIZE=$count

# An existing store may hold the keys of an earlier job; a fresh prefix keeps the two apart.
run_id="digits-$(date +%s)-$$"
for ((rank = 0; rank < count; rank++)); do
    RANK=$rank "$trainer" --run-id "$run_id" "$@" &
    rank_of[$!]=$rank
done

result=0
while [[ ${#rank_of[@]} -gt 0 ]]; do
    ended=
    # The ranks by name, because the server is a child as well and should not end.
    wait -n -p ended "${!rank_of[@]}" ${timer:+"$timer"}
    code=$?
    [[ $ended != "$timer" ]] || break # the others had their time
    if [[ $code -ne 0 && $result -eq 0 ]]; then
        echo "run_digits.sh: rank ${rank_of[$ended]} failed with exit code $code" >&2
        result=$code
        # Let the others notice and say so, then stop them.
        sleep 1 &
        timer=$!
    fi
    unset "rank_of[$ended]"
done
exit "$result"
