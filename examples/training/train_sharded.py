"""As train.py, its model and optimizer sharded over the processes by FSDP: `torchrun train_sharded.py TEXT`."""

import sys

import flyball.torch
import torch
from language_model import LanguageModel, Text
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.functional import cross_entropy

job = flyball.torch.join()
torch.manual_seed(0)
text = Text(sys.argv[1], length=64)
model = LanguageModel(length=64).to(job.device)
if job.world_size > 1:
    model = FullyShardedDataParallel(model, device_id=job.device, use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
job.register_sharded_state(model, optimizer, every_seconds=600)
for _ in job.epochs():
    for tokens, following in job.loader(text):
        with job.step() as step:
            loss = cross_entropy(model(tokens.to(job.device)), following.to(job.device))
            step.weighted(loss).backward()
            if step.completes_batch:
                optimizer.step()
                optimizer.zero_grad()
