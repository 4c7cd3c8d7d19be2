"""The truth about simulated training: how long an iteration takes and how hard it works the GPU.

The trainers of the devcluster and the demo's baseline live by these numbers. The operator never sees them: it has to
learn time and energy from what the agents report, as it would on hardware. That is why they are kept apart from the
planner's own models.

One iteration of a model on n GPUs is a computing part and a waiting part (all-reduce, input):

    T(n, B, f) = C * (c * f_max / f + 1 - c) + W        C = T(1, B) / n,  W = T(n, B) - C

T(n, B) is measured (ElasticFlow, A100, highest clock); c is the share of the computing that slows with the clock, the
rest being bound by memory. While it waits, the GPU spins at little more than idle power.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GPUS_PER_NODE = 8
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)

# Activity (0..1 of the simulated A100's heaviest kernel, docs/simulated-gpu.md) of a GPU that blocks on communication:
# 83.6 W at the highest clock, Perseus' measured P_p2p of an A100 (ml-energy/zeus, Apache-2.0); 69.7 W of it are idle.
WAITING_ACTIVITY = 0.042


@dataclass(frozen=True, slots=True)
class ModelClass:
    """One kind of model: measured throughput, and how its computing answers to the clock.

    `iterations_per_second[batch][i]` is for `GPU_COUNTS[i]` GPUs, eight a node. `clock_share` is c of this module's
    formula. `computing_activity` is the activity of the simulated GPU while it computes. `node_seconds` is what each
    doubling of the nodes beyond the packed placement adds to an iteration.
    """

    name: str
    iterations_per_second: Mapping[int, tuple[float, ...]]
    clock_share: float
    computing_activity: float
    node_seconds: float

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.iterations_per_second))


# Throughputs: gudiandian/ElasticFlow, throughputs_A100 (Apache-2.0), rounded to four figures. DeepSpeech2 with batch 32
# was not measured on 64 GPUs; the value is that of 32.
#
# clock_share: from the slowdown at a 100 W power limit (Zeus, V100: BERT x2.0, ResNet-50 x1.85, DeepSpeech2 x1.45;
# ml-energy/zeus, Apache-2.0) and the clock that the V100's power curve leaves there. GPT-2: Perseus' GPT-3 stages on
# the A100 (1410 to 1005 MHz: time x1.38). VGG-16 and Inception-3 have no public measurement: VGG-16's large dense
# convolutions are put above ResNet-50, Inception's many small ones below.
#
# computing_activity: Perseus' GPT-3 stage draws 296 W on the A100 at 1410 MHz (activity 0.69); the others by the ratio
# of their dynamic power to BERT's on the V100 at full limit (ResNet-50 0.97, DeepSpeech2 0.83), BERT as GPT-3.
#
# node_seconds: the constant part of the inter-node term of PowerFlow's throughput model (Eq. 4), fitted to the tables.
_CLASSES = (
    ModelClass(
        "resnet50",
        {
            64: (6.843, 11.84, 18.30, 21.27, 21.51, 22.75, 20.97),
            128: (3.655, 6.620, 11.22, 16.53, 20.16, 20.29, 21.07),
            256: (1.843, 3.449, 6.191, 10.38, 15.15, 17.82, 18.85),
        },
        clock_share=0.47,
        computing_activity=0.67,
        node_seconds=0.0205,
    ),
    ModelClass(
        "vgg16",
        {
            64: (5.053, 9.036, 14.76, 19.33, 25.89, 30.56, 29.53),
            128: (2.625, 4.874, 8.721, 13.57, 18.06, 23.62, 25.78),
            256: (1.314, 2.523, 4.642, 7.996, 12.62, 16.37, 20.66),
        },
        clock_share=0.60,
        computing_activity=0.68,
        node_seconds=0.0131,
    ),
    ModelClass(
        "inception3",
        {
            64: (4.821, 8.190, 11.69, 13.39, 13.69, 13.69, 13.05),
            128: (2.562, 4.659, 7.804, 10.85, 12.80, 12.84, 12.34),
        },
        clock_share=0.42,
        computing_activity=0.62,
        node_seconds=0.0144,
    ),
    ModelClass(
        "bert",
        {
            64: (6.031, 8.643, 10.36, 11.06, 10.99, 10.61, 9.246),
            128: (3.575, 5.679, 8.451, 9.994, 10.77, 10.71, 9.445),
        },
        clock_share=0.52,
        computing_activity=0.69,
        node_seconds=0.0149,
    ),
    ModelClass(
        "gpt2",
        {
            128: (7.309, 11.95, 16.67, 18.70, 19.87, 18.60, 16.65),
            256: (4.097, 6.960, 11.44, 15.66, 17.87, 18.86, 15.64),
        },
        clock_share=0.94,
        computing_activity=0.69,
        node_seconds=0.0078,
    ),
    ModelClass(
        "deepspeech2",
        {
            32: (3.023, 5.366, 7.544, 9.816, 12.88, 14.46, 14.46),
            64: (1.600, 2.961, 5.253, 7.406, 9.401, 12.48, 13.97),
        },
        clock_share=0.35,
        computing_activity=0.57,
        node_seconds=0.0008,
    ),
)

MODEL_CLASSES: Mapping[str, ModelClass] = MappingProxyType({model.name: model for model in _CLASSES})


def model_class(name: str) -> ModelClass:
    """The class of that name. Raises ValueError, naming those that there are."""
    try:
        return MODEL_CLASSES[name]
    except KeyError:
        raise ValueError(f"model class {name!r} is unknown; there are {', '.join(MODEL_CLASSES)}") from None


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration at one clock: its length in seconds, and the mean activity (0..1) of each GPU over it."""

    seconds: float
    activity: float


def iteration(
    model: ModelClass, gpus: int, nodes: int, global_batch_size: int, clock_fraction: float, noise: float = 1.0
) -> Iteration:
    """What one iteration takes on `gpus` GPUs of `nodes` nodes at `clock_fraction` = slowest SM clock / highest clock.

    `noise` multiplies the time (see `noise_factor`). Raises ValueError for sizes below one, fewer GPUs than nodes, or a
    clock fraction outside (0, 1].
    """
    if gpus < 1 or not 1 <= nodes <= gpus or global_batch_size < 1:
        raise ValueError(f"{model.name}: {gpus} GPUs on {nodes} nodes with batch {global_batch_size} is no placement")
    if not 0.0 < clock_fraction <= 1.0:
        raise ValueError(f"{model.name}: clock fraction {clock_fraction} is not within (0, 1]")
    whole = 1.0 / _throughput(model, gpus, global_batch_size)
    # The measured table is not perfectly convex: a size that scales better than linearly waits for nothing.
    computing = min(whole, 1.0 / (_throughput(model, 1, global_batch_size) * gpus))
    waiting = whole - computing
    packed = -(-gpus // GPUS_PER_NODE)
    if nodes > packed:
        waiting += model.node_seconds * math.log2(nodes / packed)
    computing *= model.clock_share / clock_fraction + 1.0 - model.clock_share
    total = computing + waiting
    activity = (computing * model.computing_activity + waiting * WAITING_ACTIVITY) / total
    return Iteration(total * noise, activity)


def throughput(model: ModelClass, gpus: int, global_batch_size: int) -> float:
    """Iterations per second at the highest clock, packed eight GPUs a node."""
    nodes = -(-gpus // GPUS_PER_NODE)
    return 1.0 / iteration(model, gpus, nodes, global_batch_size, 1.0).seconds


def noise_factor(key: str, relative_deviation: float) -> float:
    """A factor on iteration times, drawn log-normally and the same for the same key (1.0 where the deviation is 0)."""
    if relative_deviation == 0.0:
        return 1.0
    digest = hashlib.sha256(key.encode()).digest()
    # Box-Muller from 2 x 48 bits of the digest; the +1 keeps the logarithm's argument above zero.
    first = (int.from_bytes(digest[:6], "big") + 1) / 2.0**48
    second = int.from_bytes(digest[6:12], "big") / 2.0**48
    normal = math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)
    return math.exp(relative_deviation * normal)


def _throughput(model: ModelClass, gpus: int, batch: int) -> float:
    """Bilinear in log n and log batch between the measured points; flat in n beyond 64 GPUs.

    Outside the measured batch sizes the time of an iteration is linear in the batch, by the nearest pair: a fixed cost
    and one for each sample.
    """
    sizes = model.batch_sizes
    low = min(max(bisect_right(sizes, batch) - 1, 0), len(sizes) - 2)
    small, large = sizes[low], sizes[low + 1]
    below, above = (_by_gpus(model.iterations_per_second[size], gpus) for size in (small, large))
    if small <= batch <= large:
        share = math.log(batch / small) / math.log(large / small)
        return math.exp((1.0 - share) * math.log(below) + share * math.log(above))
    # Where many GPUs share a small batch the larger one was measured as no slower: samples are then free.
    seconds_per_sample = max(0.0, (1.0 / above - 1.0 / below) / (large - small))
    nearest, size = (below, small) if batch < small else (above, large)
    return 1.0 / (1.0 / nearest + (batch - size) * seconds_per_sample)


def _by_gpus(row: tuple[float, ...], gpus: int) -> float:
    if gpus >= GPU_COUNTS[-1]:
        return row[-1]
    low = bisect_right(GPU_COUNTS, gpus) - 1
    share = math.log2(gpus / GPU_COUNTS[low])
    return math.exp((1.0 - share) * math.log(row[low]) + share * math.log(row[low + 1]))
