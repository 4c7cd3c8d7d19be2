"""Pools: nodes that are alike to the planner in everything but how many of their GPUs are free.

Two nodes are in one pool when they have the same GPU model and buddy cell, the same idle watts, the same caps over them and
the same jobs allowed on them. Allocation then works with pools, of which there are few, and placement with nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from flyball_planner.models.gpu import GpuModel
from flyball_planner.snapshot import CapConstraint, JobState, NodeState

# Of the largest limit, or of the clocks: boards that differ by no more are planned with by what all of them can do.
ALIKE_SHARE = 0.15
# So are others, but where they are of so small a share of a product's nodes.
FEW_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Pool:
    """A set of interchangeable nodes. `cell_gpus` is the largest power of two within a node: what one node gives a job.

    Pools of one `group` differ only by caps, idle watts and the jobs allowed on them: one job may span those of them that
    it is allowed on. `capacities` holds each node's GPUs that jobs may hold: 0 where nothing new may be placed. Nodes that
    cannot be commanded have pools of their own, without room and without caps: what they hold is fixed, whatever runs
    there.
    """

    index: int
    group: int
    gpu_model: GpuModel
    cell_gpus: int
    cap_indices: tuple[int, ...]
    idle_limit_watts: float
    idle_draw_watts: float
    selector: tuple[bool, ...]
    node_names: tuple[str, ...]
    capacities: tuple[int, ...]

    @property
    def levels(self) -> int:
        """Buddy levels 0..levels: cells of 2^level GPUs."""
        return self.cell_gpus.bit_length() - 1


def cell_of(gpus: int) -> int:
    """The largest power of two within a node of so many GPUs: its largest buddy cell (0 for a node without GPUs)."""
    return 1 << (gpus.bit_length() - 1) if gpus > 0 else 0


def shape(gpus: int, cell_gpus: int) -> tuple[int, int]:
    """(nodes, GPUs on each) that a job of `gpus` takes where one node gives `cell_gpus`.

    Every pod of an Indexed Job is alike, so each node gives the same number: for powers of two, one cell of one node, or
    whole cells of gpus/cell nodes (PowerFlow section 5.3).
    """
    nodes = -(-gpus // cell_gpus)
    while gpus % nodes:
        nodes += 1
    return nodes, gpus // nodes


def level_of(gpus_on_node: int) -> int:
    """The buddy level of the smallest cell that holds so many GPUs of one node."""
    return (gpus_on_node - 1).bit_length()


def take_room(room: list[int], level: int, cells: int) -> None:
    """Take cells of 2^level GPUs (negative: give them back) from how many cells of each level have `room`."""
    for lower in range(min(level, len(room) - 1) + 1):
        room[lower] -= cells << (level - lower)


def block_of(gpus_on_node: int) -> int:
    """The GPUs of one node that a job of so many takes from others: its smallest cell, whole (PowerFlow section 5.3).

    So every set of cells that fits by count has places, and planning again finds the same: GPUs of three times a power of
    two leave a quarter of their cell to nobody.
    """
    return 1 << level_of(gpus_on_node)


def idle_limit_watts(node: NodeState) -> float:
    """What an idle GPU of the node is allowed: the node's own figure, or the model's smallest limit."""
    return node.gpu_model.min_power_limit_watts if node.idle_power_limit_watts is None else node.idle_power_limit_watts


def unified_models(nodes: Iterable[NodeState]) -> dict[GpuModel, GpuModel]:
    """For each GPU model as some node reports it, the model to plan jobs with.

    Boards of one product may report limits or clocks that differ. What all of them can do is what a job that spans them can
    be given, and keeps them in one pool; boards without a common range stay apart. So do those of a few nodes that differ
    by more than `ALIKE_SHARE` from what most report: what one node says must not bound what all others are given.
    """
    counts: dict[str, Counter[GpuModel]] = {}
    for node in nodes:
        counts.setdefault(node.gpu_model.product, Counter())[node.gpu_model] += 1
    unified: dict[GpuModel, GpuModel] = {}
    for of_product in counts.values():
        groups = _alike_groups(of_product)
        fewest = FEW_SHARE * of_product.total()
        many = [group for group in groups if sum(of_product[model] for model in group) > fewest] or groups
        all_of_many = [model for group in many for model in group]
        together = _common(all_of_many)
        for group in groups:
            common = together if together is not None and group[0] in all_of_many else _common(group)
            unified |= {model: common or model for model in group}
    return unified


def _alike_groups(counts: Counter[GpuModel]) -> list[list[GpuModel]]:
    """The models that differ a little from the one of most nodes, the others from the one of most of these, and so on."""
    groups: list[list[GpuModel]] = []
    for model in sorted(counts, key=lambda model: (-counts[model], *_figures(model))):
        alike = next((group for group in groups if _alike(group[0], model)), None)
        if alike is None:
            groups.append([model])
        else:
            alike.append(model)
    return groups


def _figures(model: GpuModel) -> tuple[float | tuple[int, ...], ...]:
    """What boards of one product may differ by."""
    return (
        model.max_power_limit_watts,
        model.min_power_limit_watts,
        model.default_power_limit_watts,
        model.idle_power_watts,
        model.clocks_megahertz,
    )


def _alike(usual: GpuModel, other: GpuModel) -> bool:
    """Whether what both can do is not much less than what the usual one can."""
    most_watts = ALIKE_SHARE * usual.max_power_limit_watts
    common = len(set(usual.clocks_megahertz) & set(other.clocks_megahertz))
    return (
        abs(other.max_power_limit_watts - usual.max_power_limit_watts) <= most_watts
        and abs(other.min_power_limit_watts - usual.min_power_limit_watts) <= most_watts
        and common >= (1.0 - ALIKE_SHARE) * len(usual.clocks_megahertz)
    )


def _common(models: Sequence[GpuModel]) -> GpuModel | None:
    if len(models) == 1:
        return models[0]
    lowest = max(model.min_power_limit_watts for model in models)
    highest = min(model.max_power_limit_watts for model in models)
    clocks = sorted(set.intersection(*(set(model.clocks_megahertz) for model in models)))
    if lowest > highest or not clocks:
        return None
    base = max(models, key=lambda model: (model.idle_power_watts, model.clocks_megahertz, model.max_power_limit_watts))
    default = min(max(min(model.default_power_limit_watts for model in models), lowest), highest)
    idle = min(base.idle_power_watts, highest)
    return replace(
        base,
        min_power_limit_watts=lowest,
        max_power_limit_watts=highest,
        default_power_limit_watts=default,
        idle_power_watts=idle,
        clocks_megahertz=tuple(clocks),
    )


class _Likeness(NamedTuple):
    gpu_model: GpuModel
    cell_gpus: int
    cap_indices: tuple[int, ...]
    idle_limit_watts: float
    idle_draw_watts: float
    selector: tuple[bool, ...]
    commandable: bool


def build_pools(
    nodes: Iterable[NodeState], caps: Sequence[CapConstraint], selectors: Sequence[frozenset[str]]
) -> tuple[tuple[Pool, ...], dict[str, tuple[int, int]]]:
    """The pools of a cluster, and each node's (pool, position within it).

    `cap_indices` index `caps`. Pools and their nodes are ordered by name, so that the order of `nodes` does not matter.
    """
    nodes = sorted(nodes, key=lambda node: node.name)
    models = unified_models(nodes)
    caps_of = _caps_of_nodes(caps)
    members: dict[_Likeness, list[NodeState]] = {}
    for node in nodes:
        if node.gpus == 0:
            continue
        commandable = node.fixed_bound_watts is None
        key = _Likeness(
            models[node.gpu_model],
            cell_of(node.gpus),
            caps_of.get(node.name, ()) if commandable else (),
            idle_limit_watts(node),
            node.gpu_model.idle_power_watts,
            tuple(node.name in selector for selector in selectors),
            commandable,
        )
        members.setdefault(key, []).append(node)
    groups: dict[tuple[GpuModel, int], int] = {}
    pools: list[Pool] = []
    position: dict[str, tuple[int, int]] = {}
    for key, alike in members.items():
        index = len(pools)
        pools.append(
            Pool(
                index=index,
                group=groups.setdefault((key.gpu_model, key.cell_gpus), len(groups)),
                gpu_model=key.gpu_model,
                cell_gpus=key.cell_gpus,
                cap_indices=key.cap_indices,
                idle_limit_watts=key.idle_limit_watts,
                idle_draw_watts=key.idle_draw_watts,
                selector=key.selector,
                node_names=tuple(node.name for node in alike),
                capacities=tuple(_capacity(node) for node in alike),
            )
        )
        for place, node in enumerate(alike):
            position[node.name] = (index, place)
    return tuple(pools), position


def open_to_jobs(node: NodeState) -> bool:
    """Whether a job that is not there may come to the node, as far as it has GPUs."""
    return node.schedulable and not node.evacuate and node.fixed_bound_watts is None


def _capacity(node: NodeState) -> int:
    return node.usable_gpus if open_to_jobs(node) else 0


def selectors_of(jobs: Iterable[JobState]) -> tuple[frozenset[str], ...]:
    """The distinct sets of nodes that jobs are bound to, in a fixed order."""
    distinct = {job.eligible_nodes for job in jobs if job.eligible_nodes is not None}
    return tuple(sorted(distinct, key=sorted))


def _caps_of_nodes(caps: Sequence[CapConstraint]) -> dict[str, tuple[int, ...]]:
    by_node: dict[str, list[int]] = {}
    for index, cap in enumerate(caps):
        for name in cap.node_names:
            by_node.setdefault(name, []).append(index)
    return {name: tuple(indices) for name, indices in by_node.items()}


def eligible_pools(job: JobState, pools: Sequence[Pool], selectors: Sequence[frozenset[str]]) -> tuple[int, ...]:
    """The pools whose nodes the job's pods may go to."""
    if job.eligible_nodes is None:
        return tuple(pool.index for pool in pools)
    column = selectors.index(job.eligible_nodes)
    return tuple(pool.index for pool in pools if pool.selector[column])
