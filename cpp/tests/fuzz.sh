#!/bin/sh
# Damaged artifacts, a great many: fuzz.sh FUZZER COUNT FILE... runs COUNT of them under a build with LAMPWORK_SANITIZE, in
# steps of 20,000 with a seed each. Stops at the first that a sanitizer objects to; the number of its turn is found with
# LAMPWORK_FUZZ_SHOW=1, the file with LAMPWORK_FUZZ_ONLY=TURN LAMPWORK_FUZZ_WRITE=PATH. The files: fuzz_corpus.py makes them.
set -e
fuzzer=$1 count=$2
shift 2
seed=${SEED:-1}
done=0
while [ "$done" -lt "$count" ]; do
  echo "seed $seed"
  "$fuzzer" 20000 "$seed" "$@"
  seed=$((seed + 1)) done=$((done + 20000))
done
