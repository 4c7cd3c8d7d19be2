"""Measured training throughputs, and how each class of model answers to the clock: what the simulated truth is made of.

Nothing here is known to a planner. Only the standard library is used: every simulated training process loads this.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GPUS_PER_NODE = 8  # of the machines that were measured
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class ModelClass:
    """One kind of model.

    `iterations_per_second[batch][i]`, of a global batch on `GPU_COUNTS[i]` GPUs, is measured on A100s at the highest
    clock. `clock_share` of the computing slows with the clock, the rest being bound by memory. `computing_activity` is the
    activity (0..1 of the heaviest kernel, docs/simulated-gpu.md) of a GPU that computes with 32 samples or more;
    `batch_slope` of it is lost for each factor e of fewer samples. `node_seconds` is what each doubling of the nodes beyond
    the packed placement adds to an iteration. `pool` is what jobs of a trace are drawn from: global batch sizes that were
    measured, or at most a factor of two away from one.
    """

    name: str
    iterations_per_second: Mapping[int, tuple[float, ...]]
    clock_share: float
    computing_activity: float
    batch_slope: float
    node_seconds: float
    pool: tuple[int, ...]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The measured ones, ascending."""
        return tuple(sorted(self.iterations_per_second))


# Throughputs: gudiandian/ElasticFlow, throughputs_A100 (Apache-2.0), rounded to four figures. DeepSpeech2 with batch 32
# was not measured on 64 GPUs; the value is that of 32.
#
# clock_share: from the slowdown at a 100 W power limit (Zeus, V100: BERT x2.0, ResNet-50 x1.85, DeepSpeech2 x1.45;
# ml-energy/zeus, Apache-2.0) and the clock that the V100's power curve leaves there. GPT-2: as compute-bound training on
# an A100 (1410 to 1005 MHz: time x1.38; Perseus' GPT-3 stages lie a little below, x1.30 to x1.33). VGG-16 and Inception-3
# have no public measurement: VGG-16's large dense convolutions are put above ResNet-50, Inception's many small ones below.
#
# computing_activity: compute-bound training draws 296 W on an A100 at 1410 MHz (activity 0.69: BERT, GPT-2); the others
# by the ratio of their dynamic power to BERT's on the V100 at full limit (ResNet-50 0.97, DeepSpeech2 0.83).
#
# batch_slope: Zeus' V100 at full limit, dynamic power against samples per GPU from 8 (DeepSpeech2: 2) to 32: ResNet-50
# 221 to 227 W, BERT 207 and 225 to 226 and 228 W, DeepSpeech2 156 to 205 W. Above 32 all are flat or fall. The others as
# the nearest of their kind.
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
        batch_slope=0.02,
        node_seconds=0.0205,
        pool=(32, 64, 128, 256, 512),
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
        batch_slope=0.02,
        node_seconds=0.0131,
        pool=(32, 64, 128, 256, 512),
    ),
    ModelClass(
        "inception3",
        {
            64: (4.821, 8.190, 11.69, 13.39, 13.69, 13.69, 13.05),
            128: (2.562, 4.659, 7.804, 10.85, 12.80, 12.84, 12.34),
        },
        clock_share=0.42,
        computing_activity=0.62,
        batch_slope=0.02,
        node_seconds=0.0144,
        pool=(32, 64, 128, 256),
    ),
    ModelClass(
        "bert",
        {
            64: (6.031, 8.643, 10.36, 11.06, 10.99, 10.61, 9.246),
            128: (3.575, 5.679, 8.451, 9.994, 10.77, 10.71, 9.445),
        },
        clock_share=0.52,
        computing_activity=0.69,
        batch_slope=0.03,
        node_seconds=0.0149,
        pool=(32, 64, 128, 256),
    ),
    ModelClass(
        "gpt2",
        {
            128: (7.309, 11.95, 16.67, 18.70, 19.87, 18.60, 16.65),
            256: (4.097, 6.960, 11.44, 15.66, 17.87, 18.86, 15.64),
        },
        clock_share=0.94,
        computing_activity=0.69,
        batch_slope=0.03,
        node_seconds=0.0078,
        pool=(64, 128, 256),
    ),
    ModelClass(
        "deepspeech2",
        {
            32: (3.023, 5.366, 7.544, 9.816, 12.88, 14.46, 14.46),
            64: (1.600, 2.961, 5.253, 7.406, 9.401, 12.48, 13.97),
        },
        clock_share=0.35,
        computing_activity=0.57,
        batch_slope=0.12,
        node_seconds=0.0008,
        pool=(16, 32, 64, 128),
    ),
)

MODEL_CLASSES: Mapping[str, ModelClass] = MappingProxyType({model.name: model for model in _CLASSES})


def model_class(name: str) -> ModelClass:
    """The class of that name. Raises ValueError, naming those that there are."""
    try:
        return MODEL_CLASSES[name]
    except KeyError:
        raise ValueError(f"model class {name!r} is unknown; there are {', '.join(MODEL_CLASSES)}") from None


def measured_throughput(model: ModelClass, gpus: int, global_batch_size: int) -> float:
    """Iterations per second on A100s at the highest clock, packed eight GPUs a node.

    Bilinear in the logarithms of GPUs, batch and throughput between the measured points; flat in the GPUs beyond 64.
    Outside the measured batch sizes the time of an iteration is linear in the batch, by the nearest pair: a fixed cost and
    one for each sample. Raises ValueError for sizes below one.
    """
    if gpus < 1 or global_batch_size < 1:
        raise ValueError(f"{model.name}: {gpus} GPUs with batch {global_batch_size} is no size of a job")
    sizes = model.batch_sizes
    low = min(max(bisect_right(sizes, global_batch_size) - 1, 0), len(sizes) - 2)
    small, large = sizes[low], sizes[low + 1]
    below, above = (_by_gpus(model.iterations_per_second[size], gpus) for size in (small, large))
    if small <= global_batch_size <= large:
        share = math.log(global_batch_size / small) / math.log(large / small)
        return math.exp((1.0 - share) * math.log(below) + share * math.log(above))
    # Where many GPUs share a small batch the larger one was measured as no slower: samples are then free.
    seconds_per_sample = max(0.0, (1.0 / above - 1.0 / below) / (large - small))
    nearest, size = (below, small) if global_batch_size < small else (above, large)
    return 1.0 / (1.0 / nearest + (global_batch_size - size) * seconds_per_sample)


def _by_gpus(row: tuple[float, ...], gpus: int) -> float:
    if gpus >= GPU_COUNTS[-1]:
        return row[-1]
    low = bisect_right(GPU_COUNTS, gpus) - 1
    share = math.log2(gpus / GPU_COUNTS[low])
    return math.exp((1.0 - share) * math.log(row[low]) + share * math.log(row[low + 1]))
