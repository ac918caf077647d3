#!/usr/bin/env bash
# tools/dist_test.sh CONFIG CHECKPOINT GPUS [FLAG ...]: tools/test.py in GPUS processes, one a GPU; see tools/torchrun.sh.
set -euo pipefail
(($# >= 3)) || { echo "usage: $0 CONFIG CHECKPOINT GPUS [FLAG ...]" >&2; exit 2; }
tools=$(dirname "$0")
exec bash "$tools/torchrun.sh" "$3" "$tools/test.py" "$1" "$2" --launcher pytorch "${@:4}"
