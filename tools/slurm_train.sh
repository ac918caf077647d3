#!/usr/bin/env bash
# tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [FLAG ...]: tools/train.py under Slurm; see tools/srun.sh.
set -euo pipefail
(($# >= 4)) || { echo "usage: $0 PARTITION JOB_NAME CONFIG WORK_DIR [FLAG ...]" >&2; exit 2; }
tools=$(dirname "$0")
exec bash "$tools/srun.sh" "$1" "$2" "$tools/train.py" "$3" --work-dir "$4" --launcher pytorch "${@:5}"
