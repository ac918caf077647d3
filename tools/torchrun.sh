#!/usr/bin/env bash
# tools/torchrun.sh GPUS SCRIPT [ARGUMENT ...]: a script in GPUS processes; what tools/dist_*.sh share.
# On several nodes run it on each, with NNODES, NODE_RANK and MASTER_ADDR set; PORT is free to choose.
set -euo pipefail
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes "${NNODES:-1}" --node_rank "${NODE_RANK:-0}" --nproc_per_node "$1" \
    --master_addr "${MASTER_ADDR:-127.0.0.1}" --master_port "${PORT:-29500}" "${@:2}"
