export GREETING='it'"'"'s $(HOME) $5'
: "${HF_TOKEN:?export it before you submit this script}"
: "${MASTER_ADDR:?set it to the address of the first host}"
# on host 0
torchrun --nnodes=4 --nproc-per-node=2 --node-rank=0 --master-addr="$MASTER_ADDR" --master-port=29500 train.py --note 'it'"'"'s $(HOME) $5' -x
# on host 1
torchrun --nnodes=4 --nproc-per-node=2 --node-rank=1 --master-addr="$MASTER_ADDR" --master-port=29500 train.py --note 'it'"'"'s $(HOME) $5' -x
# on host 2
torchrun --nnodes=4 --nproc-per-node=2 --node-rank=2 --master-addr="$MASTER_ADDR" --master-port=29500 train.py --note 'it'"'"'s $(HOME) $5' -x
# on host 3
torchrun --nnodes=4 --nproc-per-node=2 --node-rank=3 --master-addr="$MASTER_ADDR" --master-port=29500 train.py --note 'it'"'"'s $(HOME) $5' -x
