"""Runs a microbatch's kernels as a plan of Kareus says: `torchrun --nproc-per-node 2 overlapped_kernels.py plan.json`.

Each microbatch is two halves, and while one's kernels compute, the other's activations are added up over the processes
(tensor parallelism). With which kernel that communication is launched, and which ones may run beside it, the plan says for
each computation. `--measure` has every such schedule run and prints what it takes, for a plan to be made of.

On GPUs where there are any. Several processes on one GPU communicate by gloo (`BACKEND=gloo`): NCCL wants a GPU for each.
"""

import json
import os
import statistics
import sys
import time

import flyball.torch
import torch
from flyball import Kernels
from torch import distributed

MICROBATCHES, ITERATIONS, REPEATED = 3, 2, 5

job = flyball.torch.join(backend=os.environ.get("BACKEND"))
SIZE = 4096 if job.device.type == "cuda" else 64
torch.manual_seed(0)
UP, DOWN = torch.randn(SIZE, SIZE).to(job.device) / SIZE, torch.randn(SIZE, SIZE).to(job.device) / SIZE
KERNELS = {
    "forward": [("up", lambda x: x @ UP), ("gelu", torch.nn.functional.gelu), ("down", lambda x: x @ DOWN)],
    "backward": [("down'", lambda x: x @ DOWN.T), ("tanh", torch.tanh), ("up'", lambda x: x @ UP.T)],
}


def overlapped(instruction, computed, communicated, kernels):
    """The kernels of one half, and beside them the sum of the other half; also in which order they were launched."""
    launched, work = [], None
    for number, (name, kernel) in enumerate(KERNELS[instruction]):
        if kernels is not None and number == kernels.launch_kernel:
            work = distributed.all_reduce(communicated, async_op=True)
            launched.append("all-reduce")
        if work is not None and kernels.last_kernel is not None and number == kernels.last_kernel + 1:
            work.wait()
            launched.append("wait")
        computed = kernel(computed)
        launched.append(name)
    if work is None:  # one after the other
        work = distributed.all_reduce(communicated, async_op=True)
        launched.append("all-reduce")
    work.wait()
    return computed, launched


def microbatch(instruction, kernels):
    """Both halves in turn; the sum of all that comes out, and the launches of the first half."""
    generator = torch.Generator(job.device).manual_seed(job.rank)
    first, second = (torch.rand(SIZE, SIZE, generator=generator, device=job.device) for _ in range(2))
    first, launched = overlapped(instruction, first, second, kernels)
    second, _ = overlapped(instruction, second, first, kernels)
    return float(first.sum() + second.sum()), launched  # the number is there once the GPU has computed it: it is done


if sys.argv[1] == "--measure":
    schedules = [None, *(Kernels(0, launch, last) for launch in range(3) for last in (None, launch))]
    for instruction in KERNELS:
        for kernels in schedules:
            taken = []
            for _ in range(REPEATED):
                distributed.barrier()
                began = time.perf_counter()
                microbatch(instruction, kernels)
                taken.append(time.perf_counter() - began)
            schedule = None if kernels is None else [kernels.launch_kernel, kernels.last_kernel]
            if job.rank == 0:
                print(
                    json.dumps({"instruction": instruction, "schedule": schedule, "seconds": statistics.median(taken)})
                )
else:
    pipeline = job.pipeline(sys.argv[1], stage=0, replica=job.rank)
    for _ in range(ITERATIONS):
        for number in range(MICROBATCHES):
            for instruction in KERNELS:
                with pipeline.computation(instruction, number) as computation:
                    kernels = (computation.kernels or {}).get("layer")
                    total, launched = microbatch(instruction, kernels)
                if job.rank == 0:
                    print(json.dumps({"computation": [instruction, number], "launched": launched, "sum": total}))
        with pipeline.synchronize():
            distributed.barrier()
job.finish()
