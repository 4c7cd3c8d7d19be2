"""The truth about one iteration: how long it takes and how hard it works the GPUs.

A computing part and a waiting part (all-reduce, input), on n GPUs at clock f:

    T(n, B, f) = C * (c * f_max / f + 1 - c) + W        C = T(1, B) / n,  W = T(n, B) - C

T(n, B) is measured (throughputs.py), c is the share of the computing that slows with the clock. While it waits, a GPU
spins at little more than idle power. A training process of the devcluster, the demo's baseline and the simulator's oracle
all live by this.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from flyball_simulator.measured.throughputs import GPUS_PER_NODE, ModelClass, measured_throughput

# Activity of a GPU that blocks on communication: 83.6 W on an A100 at the highest clock, 69.7 W of them idle. Perseus'
# measured P_p2p (ml-energy/zeus, Apache-2.0).
WAITING_ACTIVITY = 0.042
FULL_POWER_SAMPLES = 32  # on one GPU: fewer leave some of it idle, more were measured to change nothing
LEAST_ACTIVITY_SHARE = 0.3  # however few the samples: below what was measured (DeepSpeech2 on two: 0.7)


class Parts(NamedTuple):
    """An iteration at the highest clock of the reference: seconds of each part, and a GPU's activity in the first."""

    computing_seconds: float
    waiting_seconds: float
    computing_activity: float


class Iteration(NamedTuple):
    """One iteration at one clock: its length in seconds, and the mean activity (0..1) of each GPU over it."""

    seconds: float
    activity: float


def iteration_parts(model: ModelClass, gpus: int, nodes: int, global_batch_size: int) -> Parts:
    """What an iteration consists of. Raises ValueError for sizes below one, or more nodes than GPUs."""
    if gpus < 1 or not 1 <= nodes <= gpus or global_batch_size < 1:
        raise ValueError(f"{model.name}: {gpus} GPUs on {nodes} nodes with batch {global_batch_size} is no placement")
    whole = 1.0 / measured_throughput(model, gpus, global_batch_size)
    # The measured table is not perfectly convex: a size that scales better than linearly waits for nothing.
    computing = min(whole, 1.0 / (measured_throughput(model, 1, global_batch_size) * gpus))
    waiting = whole - computing
    packed = -(-gpus // GPUS_PER_NODE)
    if nodes > packed:
        waiting += model.node_seconds * math.log2(nodes / packed)
    missing = math.log(max(1.0, FULL_POWER_SAMPLES * gpus / global_batch_size))
    share = max(LEAST_ACTIVITY_SHARE, 1.0 - model.batch_slope * missing)
    return Parts(computing, waiting, model.computing_activity * share)


def iteration(
    model: ModelClass, gpus: int, nodes: int, global_batch_size: int, clock_fraction: float, noise: float = 1.0
) -> Iteration:
    """What one iteration takes on `gpus` GPUs of `nodes` nodes at `clock_fraction` = slowest SM clock / highest clock.

    `noise` multiplies the time (noise.py). Raises ValueError for sizes below one, fewer GPUs than nodes, or a clock
    fraction outside (0, 1].
    """
    if not 0.0 < clock_fraction <= 1.0:
        raise ValueError(f"{model.name}: clock fraction {clock_fraction} is not within (0, 1]")
    parts = iteration_parts(model, gpus, nodes, global_batch_size)
    computing = parts.computing_seconds * (model.clock_share / clock_fraction + 1.0 - model.clock_share)
    total = computing + parts.waiting_seconds
    activity = (computing * parts.computing_activity + parts.waiting_seconds * WAITING_ACTIVITY) / total
    return Iteration(total * noise, activity)
