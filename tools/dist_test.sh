#!/usr/bin/env bash
# tools/dist_test.sh CONFIG CHECKPOINT GPUS [FLAG ...]: tools/test.py in GPUS processes, one a GPU.
# On several nodes run it on each, with NNODES, NODE_RANK and MASTER_ADDR set; PORT is free to choose.
set -euo pipefail
(($# >= 3)) || { echo "usage: $0 CONFIG CHECKPOINT GPUS [FLAG ...]" >&2; exit 2; }
positional=("${@:1:2}") gpus=$3
shift 3
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes "${NNODES:-1}" --node_rank "${NODE_RANK:-0}" --nproc_per_node "$gpus" \
    --master_addr "${MASTER_ADDR:-127.0.0.1}" --master_port "${PORT:-29500}" \
    "$(dirname "$0")/test.py" "${positional[@]}" --launcher pytorch "$@"
