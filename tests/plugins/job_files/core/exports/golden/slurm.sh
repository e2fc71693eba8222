#!/bin/bash
#SBATCH --job-name=full-job
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=2048M
#SBATCH --gpus-per-node=H100:2
#SBATCH --time=0-02:00:00
#SBATCH --output=full-job.%j.log
set -euo pipefail
export GREETING='it'"'"'s $(HOME) $5'
: "${HF_TOKEN:?export it before you submit this script}"
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
head=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
port=$((20000 + SLURM_JOB_ID % 10000))
for attempt in {0..2}; do
srun --kill-on-bad-exit=1 bash -c 'exec torchrun --nnodes=4 --nproc-per-node=2 --node-rank="$SLURM_NODEID" --master-addr="$0" --master-port="$1" "${@:2}"' \
  "$head" "$((port + attempt))" train.py --note 'it'"'"'s $(HOME) $5' -x && exit 0
done
exit 1
