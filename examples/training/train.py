"""Trains a small language model on any text: `torchrun train.py TEXT`, on as many GPUs as there are."""

import sys

import flyball.torch
import torch
from language_model import LanguageModel, Text
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

job = flyball.torch.join()
torch.manual_seed(0)
text = Text(sys.argv[1], length=64)
model = LanguageModel(length=64).to(job.device)
trained = DistributedDataParallel(model) if job.world_size > 1 else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
job.register_state(model=model, optimizer=optimizer)
for _ in job.epochs():
    for tokens, following in job.loader(text):
        with job.step() as step:
            loss = cross_entropy(trained(tokens.to(job.device)), following.to(job.device))
            step.weighted(loss).backward()
            if step.completes_batch:
                optimizer.step()
                optimizer.zero_grad()
