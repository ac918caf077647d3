#!/usr/bin/env bash
# tools/dist_train.sh CONFIG GPUS [FLAG ...]: tools/train.py in GPUS processes, one a GPU.
# On several nodes run it on each, with NNODES, NODE_RANK and MASTER_ADDR set; PORT is free to choose.
set -euo pipefail
(($# >= 2)) || { echo "usage: $0 CONFIG GPUS [FLAG ...]" >&2; exit 2; }
positional=("${@:1:1}") gpus=$2
shift 2
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes "${NNODES:-1}" --node_rank "${NODE_RANK:-0}" --nproc_per_node "$gpus" \
    --master_addr "${MASTER_ADDR:-127.0.0.1}" --master_port "${PORT:-29500}" \
    "$(dirname "$0")/train.py" "${positional[@]}" --launcher pytorch "$@"
