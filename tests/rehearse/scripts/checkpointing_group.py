"""Sharded parameters are saved and loaded with torch.distributed.checkpoint, then saved again in the background."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl")
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(3)]).cuda()
fully_shard(model)
state = {"model": model.state_dict(), "step": 3}
dcp.save(state, checkpoint_id=os.path.join(sys.argv[1], "first"))
dcp.load(state, checkpoint_id=os.path.join(sys.argv[1], "first"))
dcp.async_save(state, checkpoint_id=os.path.join(sys.argv[1], "second")).result()
print(f"rank {dist.get_rank()} saved", flush=True)
dist.destroy_process_group()
