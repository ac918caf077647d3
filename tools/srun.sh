#!/usr/bin/env bash
# tools/srun.sh PARTITION JOB_NAME SCRIPT [ARGUMENT ...]: a script on NODES nodes (default 1) of GPUS_PER_NODE GPUS
# (default 8), with CPUS_PER_GPU cores each (default 5); SRUN_ARGS go to srun. What tools/slurm_*.sh share.
set -euo pipefail
gpus=${GPUS_PER_NODE:-8}
# One task a node; torchrun in each starts the processes. The nodes meet at the first of the job.
exec srun --partition "$1" --job-name "$2" --nodes "${NODES:-1}" --ntasks-per-node 1 \
    --gres "gpu:$gpus" --cpus-per-task "$((gpus * ${CPUS_PER_GPU:-5}))" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    bash -c 'exec "${PYTHON:-python}" -m torch.distributed.run --nnodes "$SLURM_JOB_NUM_NODES" --nproc_per_node "$0" \
        --rdzv_backend c10d --rdzv_id "$SLURM_JOB_ID" \
        --rdzv_endpoint "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):${PORT:-29500}" "$@"' \
    "$gpus" "${@:3}"
