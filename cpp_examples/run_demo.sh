#!/usr/bin/env bash
# Trains twice as an elastic job of 4 workers on this host: undisturbed, and with a worker killed on the way.
# Both must learn the same. RDZV names the launcher [rdzv], DIGITS_DATA the data.
set -eu -o pipefail

[[ $# -eq 1 && $1 != -* ]] || { echo "Usage: run_demo.sh TRAINER, the compiled digits_trainer" >&2; exit 2; }
trainer=$1
data=${DIGITS_DATA:-cpp_examples/data/digits.csv}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

train() { # NAME, FLAGS OF THE TRAINER...
    "${RDZV:-rdzv}" run --nproc-per-node 4 --max-restarts 3 --log-dir "$folder/logs" \
        "$trainer" --data "$data" --checkpoint "$folder/$1.checkpoint" --weights-out "$folder/$1.weights" "${@:2}" |
        tee "$folder/$1.out"
}

export OMP_NUM_THREADS=1 # no worker has threads of its own
echo "== 1. Four workers learn to read digits; nothing happens to them."
RDZV_LOG=warn train calm | tail -n 1
echo "== 2. Again. One worker is killed in epoch 12; the launcher starts all anew, and they go on from the checkpoint."
train disturbed --die-at 12 2>&1 | grep -vE '^epoch +([1-9]|1[4-9]|2[0-9])/'

calm=$(tail -n 1 "$folder/calm.out")
disturbed=$(grep '^epoch' "$folder/disturbed.out" | tail -n 1)
grep -q '^goes on after epoch 11' "$folder/disturbed.out" || { echo "== The job did not go on from its checkpoint." >&2; exit 1; }
[[ ${calm##* } == "${disturbed##* }" ]] && cmp "$folder/calm.weights" "$folder/disturbed.weights" ||
    { echo "== The two did not learn the same: $calm, and $disturbed" >&2; exit 1; }
echo "== Both learned the same, to the last bit: test accuracy ${disturbed##* }"
