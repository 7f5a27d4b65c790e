torchrun --nproc_per_node 4 --nnodes=2 --rdzv_backend c10d train.py --deepspeed deepspeed_auto.json \
    --per_device_train_batch_size 4 --bf16 True --gradient_checkpointing True --output_dir out
