"""What one node's GPUs are: their model, their limits, and how many of them are lost, by what they report and by what is
known of such GPUs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from flyball_api.gpu_node import GpuNode, GpuReport, PowerLimits
from flyball_api.values.units import (
    MILLIWATTS_PER_WATT,
    MilliwattsPerGpu,
    NodeMilliwatts,
    held_milliwatts,
    node_milliwatts,
    of_gpus,
)
from flyball_api.workloads import NodeView
from flyball_kube.process.logs import get_logger
from flyball_planner.models.gpu import LARGEST_DEFAULT_LIMIT_WATTS, GpuModel, catalogue, gpu_model_for

logger = get_logger(__name__)

UNKNOWN = MilliwattsPerGpu(0)
# Limits are held on average; what is read over a second is above them by less.
MOST_POWER_OVER_LIMIT = 1.25
# An H100 has 237. Each is memory of a plan for every job that may go there.
MOST_CLOCKS = 256


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One node's GPUs, as far as they do not depend on what the node is granted.

    `largest_milliwatts` is the most that all of them may draw at any limit, `unseen_milliwatts` the share of it of GPUs
    that the agent does not see (lost at boot): they are still on the bus, at limits that nobody reads back. For the others
    see `NodeInfo`.

    What other nodes get watts by (the share of a cap that is given as permille) is of no more GPUs than the Node has: it is
    not the agent's word. What the node itself may draw, and draws, is of all that are reported.
    """

    model: GpuModel | None
    gpus: int
    lost_gpus: int
    min_limit_milliwatts: MilliwattsPerGpu
    default_limit_milliwatts: MilliwattsPerGpu
    max_limits_milliwatts: NodeMilliwatts
    largest_milliwatts: NodeMilliwatts
    unseen_milliwatts: NodeMilliwatts
    measured_milliwatts: NodeMilliwatts


class KnownGpus:
    """Works out each node's facts anew only where its GPUs' reports, its product or its number of GPUs have changed.

    `gpu_models` is what is known of GPUs beside what they report; None: the catalogue.
    """

    def __init__(self, gpu_models: Mapping[str, GpuModel] | None = None) -> None:
        self._gpu_models = catalogue() if gpu_models is None else gpu_models
        self._facts: dict[str, tuple[Sequence[GpuReport], str, int, int, GpuFacts]] = {}

    def facts_of(self, name: str, node: NodeView | None, gpu_node: GpuNode | None) -> GpuFacts:
        """The facts of one node."""
        reports: Sequence[GpuReport] = () if gpu_node is None else gpu_node.gpus
        # What its Node offers is a number that somebody stated; what it may have besides is a guess.
        product, gpus, most = ("", 0, 0) if node is None else (node.product, node.gpus, node.gpus)
        if node is not None and not reports:
            gpus = max(gpus, node.hidden_gpus)  # until its agent has looked
        known = self._facts.get(name)
        if known is not None and (node is None or not node.gpus):
            most = known[3]  # its device plugin is away, and takes no GPU along that its agent does not see
            gpus = max(gpus, most)
        if known is not None and known[0] is reports and known[1:4] == (product, gpus, most):
            return known[4]
        warned_before = known is not None and (len(known[0]), known[3]) == (len(reports), most)
        if 0 < most < len(reports) and not warned_before:
            logger.warning(
                "an agent reports more GPUs than its Node has", node=name, reported=len(reports), counted=most
            )
        facts = gpu_facts(product, gpus, reports, self._gpu_models, most)
        self._facts[name] = reports, product, gpus, most, facts
        return facts

    def forget_all_but(self, names: Iterable[str]) -> None:
        """Drop what is remembered of nodes that are gone."""
        for name in self._facts.keys() - names:
            del self._facts[name]


def gpu_facts(
    product: str, gpus: int, reports: Sequence[GpuReport], gpu_models: Mapping[str, GpuModel], most: int = 0
) -> GpuFacts:
    """The facts of a node that has `gpus` GPUs by Kubernetes and these by its agent; `product` is its label's, if any, and
    `most` is how many GPUs its Node lets it have (0: it says nothing of any)."""
    product = product or (reports[0].model if reports else "")
    known = gpu_model_for(product, gpu_models)
    model = _model_of(product, known, reports)
    gpus = max(len(reports), gpus)
    unseen = gpus - len(reports)
    believable = gpus if most == 0 else min(gpus, most)
    limits = [report.limits for report in reports]
    model_default = _from_watts(LARGEST_DEFAULT_LIMIT_WATTS if model is None else model.default_power_limit_watts)
    model_max = _from_watts(LARGEST_DEFAULT_LIMIT_WATTS if model is None else model.max_power_limit_watts)
    model_min = UNKNOWN if model is None else _from_watts(model.min_power_limit_watts)
    # A GPU that does not say how much it can be set to may be any of those that do.
    unknown_max = max([model_max, *(limit.max_milliwatts for limit in limits)])
    unseen_milliwatts = node_milliwatts(unknown_max, unseen)
    known_max = heapq.nlargest(
        believable, (_believable_max(product, known, limit.max_milliwatts) for limit in limits if limit.max_milliwatts)
    )
    least = max((_believable_min(product, known, limit.min_milliwatts) for limit in limits), default=UNKNOWN)
    return GpuFacts(
        model=model,
        gpus=gpus,
        # GPUs are lost to an agent that sees others; one that has reported none has yet to look.
        lost_gpus=unseen + sum(not report.healthy for report in reports) if reports else 0,
        min_limit_milliwatts=least or model_min,
        default_limit_milliwatts=max((limit.default_milliwatts for limit in limits), default=UNKNOWN) or model_default,
        max_limits_milliwatts=of_gpus(known_max) + node_milliwatts(model_max, believable - len(known_max)),
        largest_milliwatts=of_gpus(_largest(limit, unknown_max) for limit in limits) + unseen_milliwatts,
        unseen_milliwatts=unseen_milliwatts,
        measured_milliwatts=of_gpus(_believable_power(product, known, report) for report in reports),
    )


@lru_cache(maxsize=256)  # so that each is logged once, too
def _believable_max(product: str, known: GpuModel | None, reported: MilliwattsPerGpu) -> MilliwattsPerGpu:
    """A reported largest limit, at most the catalogue's: one agent's report must not lift a cap that is a share of it.

    Of GPUs that the catalogue does not know, at most the largest that any has.
    """
    highest = _from_watts(LARGEST_DEFAULT_LIMIT_WATTS if known is None else known.max_power_limit_watts)
    if reported <= highest:
        return reported
    logger.warning("a largest limit above what such GPUs have", product=product, reported=reported, counted=highest)
    return highest


@lru_cache(maxsize=256)
def _believable_min(product: str, known: GpuModel | None, reported: MilliwattsPerGpu) -> MilliwattsPerGpu:
    """A reported smallest limit, at most the catalogue's default: one agent's report must not take the others' watts."""
    highest = _from_watts(LARGEST_DEFAULT_LIMIT_WATTS if known is None else known.default_power_limit_watts)
    if reported <= highest:
        return reported
    logger.warning("a smallest limit above what such GPUs have", product=product, reported=reported, counted=highest)
    return highest


def _believable_power(product: str, known: GpuModel | None, report: GpuReport) -> MilliwattsPerGpu:
    """A GPU's measured power, at most what one can draw for a second at its largest limit: no word of one agent may stand
    for a breach by many, or use up what others share."""
    power = report.power_milliwatts or MilliwattsPerGpu(0)
    # Who leaves the limit out is bounded by what such GPUs have.
    model_max = LARGEST_DEFAULT_LIMIT_WATTS if known is None else known.max_power_limit_watts
    largest = report.limits.max_milliwatts or _from_watts(model_max)
    return min(power, MilliwattsPerGpu(int(_believable_max(product, known, largest) * MOST_POWER_OVER_LIMIT)))


def _largest(limits: PowerLimits, unknown: MilliwattsPerGpu) -> MilliwattsPerGpu:
    """The largest limit that a GPU can be set to; `unknown` for one that does not report it."""
    return max(limits.max_milliwatts or unknown, limits.default_milliwatts)


def _from_watts(watts: float) -> MilliwattsPerGpu:
    return MilliwattsPerGpu(held_milliwatts(watts))


def _model_of(product: str, known: GpuModel | None, reports: Sequence[GpuReport]) -> GpuModel | None:
    """The planner's model of a node's GPUs: `known` by their product, with the limits and clocks that the GPUs report.

    GPUs that report nonsense (a lost one has no limits any more) must not end the cycle for everybody else: the others
    stand for them, or else what is known.
    """
    complete = [report for report in reports if report.limits_known and report.clocks_megahertz.step > 0]
    if not complete:
        return known
    clocks = complete[0].clocks_megahertz
    model = _reported_model(
        product,
        known,
        max(report.limits.min_milliwatts for report in complete),
        min(report.limits.max_milliwatts for report in complete),
        max(report.limits.default_milliwatts for report in complete),
        (clocks.min, clocks.max, clocks.step),
    )
    return known if model is None else model


@lru_cache(maxsize=256)  # the same for most nodes
def _reported_model(
    product: str,
    known: GpuModel | None,
    min_milliwatts: MilliwattsPerGpu,
    max_milliwatts: MilliwattsPerGpu,
    default_milliwatts: MilliwattsPerGpu,
    clocks: tuple[int, int, int],
) -> GpuModel | None:
    lowest, highest, step = clocks
    step *= max(1, -(-len(range(lowest, highest + 1, step)) // MOST_CLOCKS))  # of more, some stand for all
    try:
        return GpuModel.from_device(
            product,
            min_power_limit_watts=min_milliwatts / MILLIWATTS_PER_WATT,
            max_power_limit_watts=max_milliwatts / MILLIWATTS_PER_WATT,
            default_power_limit_watts=default_milliwatts / MILLIWATTS_PER_WATT,
            clocks_megahertz=tuple(range(lowest, highest + 1, step)),
            models={} if known is None else {known.product: known},
        )
    except ValueError as error:
        logger.warning("a node's GPUs report impossible limits", product=product, error=str(error))
        return None
