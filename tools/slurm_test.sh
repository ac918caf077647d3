#!/usr/bin/env bash
# tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [FLAG ...]: tools/test.py under Slurm; see tools/srun.sh.
set -euo pipefail
(($# >= 4)) || { echo "usage: $0 PARTITION JOB_NAME CONFIG CHECKPOINT [FLAG ...]" >&2; exit 2; }
tools=$(dirname "$0")
exec bash "$tools/srun.sh" "$1" "$2" "$tools/test.py" "$3" "$4" --launcher pytorch "${@:5}"
