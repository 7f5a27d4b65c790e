"""Rank 1 exits without a message, or with `silent` stays alive and makes no further call, while rank 0 waits for it."""
import os
import sys
import time

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.tensor([1]).cuda()
dist.all_reduce(x)
assert x.item() == 2
if dist.get_rank() == 1:
    time.sleep(600 if sys.argv[1:] == ["silent"] else 0)
    os._exit(0)
try:
    dist.all_reduce(x)
    x.item()
except Exception as error:
    os.write(1, f"rank 0 was told: {type(error).__name__}\n".encode())
    os._exit(7)
