#!/bin/bash
# Fine-tunes on eight GPUs.
export WANDB_MODE=offline
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 accelerate launch --config_file accelerate_fsdp2.yaml --num_processes 8 --num_machines 1 \
  sft.py --model_name_or_path Qwen/Qwen3-8B \
  --per_device_train_batch_size 2 --gradient-accumulation-steps=4 \
  --bf16 --max_length 4096 --run_name "$NAME"
