tune run --nproc_per_node 2 full_finetune_distributed --config torchtune_full.yaml batch_size=8 tokenizer.max_seq_len=2048 loss=torchtune.modules.loss.CEWithChunkedOutputLoss
