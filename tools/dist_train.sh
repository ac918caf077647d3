#!/usr/bin/env bash
# tools/dist_train.sh CONFIG GPUS [FLAG ...]: tools/train.py in GPUS processes, one a GPU; see tools/torchrun.sh.
set -euo pipefail
(($# >= 2)) || { echo "usage: $0 CONFIG GPUS [FLAG ...]" >&2; exit 2; }
tools=$(dirname "$0")
exec bash "$tools/torchrun.sh" "$2" "$tools/train.py" "$1" --launcher pytorch "${@:3}"
