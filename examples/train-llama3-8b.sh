#!/bin/bash
# Llama 3 8B with Megatron-LM on 4 nodes of 8 GPUs, to be read by
#   clustersim import megatron examples/train-llama3-8b.sh --gpu h200 -o run.yaml
GPUS_PER_NODE=8
NNODES=${NNODES:-4}
TP=${TP:-2}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --rdzv_endpoint ${MASTER_ADDR:-localhost}:29500
)

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model meta-llama/Meta-Llama-3-8B
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size $((NNODES * GPUS_PER_NODE * 4))
    --bf16
    --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine   # no matter to the time of a step
    --train-iters 100000
)

PARALLEL_ARGS=(--tensor-model-parallel-size $TP --use-distributed-optimizer)
if [ "$TP" -gt 1 ]; then
    PARALLEL_ARGS+=(--sequence-parallel)
fi
PARALLEL_ARGS+=(--overlap-grad-reduce --overlap-param-gather)

torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    "${PARALLEL_ARGS[@]}" \
    --save "$CHECKPOINTS" --save-interval 1000
