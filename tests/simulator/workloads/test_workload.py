"""From traced jobs to jobs to simulate."""

from __future__ import annotations

from collections import Counter

import pytest
from flyball_planner.models.gpu import gpu_model_for
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.measured.throughputs import MODEL_CLASSES
from flyball_simulator.workloads.trace_library import synthetic_trace
from flyball_simulator.workloads.traces import TraceJob
from flyball_simulator.workloads.workload import workload_of
from hypothesis import given
from hypothesis import strategies as st


def a100_oracle() -> Oracle:
    gpu = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert gpu is not None
    return Oracle(gpu, gpu.clocks_megahertz[-20:], 8)


ORACLE = a100_oracle()


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=20),
    max_gpus=st.integers(1, 2000),
)
def test_every_job_fits_the_cluster_and_its_batch_and_runs_as_long_as_traced(
    seed: int, sizes: list[int], max_gpus: int
) -> None:
    traced = [TraceJob(str(index), float(index), 1000.0 + index, gpus) for index, gpus in enumerate(sizes)]
    jobs = workload_of(traced, ORACLE, seed, max_gpus)
    assert [job.job_id for job in jobs] == [job.job_id for job in traced]
    for job, source in zip(jobs, traced, strict=True):
        assert job.gpus & (job.gpus - 1) == 0
        assert job.gpus <= min(max_gpus, job.global_batch_size)
        assert job.gpus >= min(source.gpus, max_gpus / 2 + 0.5, 512), (
            "rounded up unless the cluster or the batch forbid"
        )
        assert job.gpus < 2 * source.gpus
        assert job.global_batch_size in MODEL_CLASSES[job.model_class].pool
        truth = ORACLE.performance(job.model_class, job.global_batch_size, job.gpus)
        assert job.iterations * truth.seconds[-1, -1] == pytest.approx(source.duration_seconds)


def test_the_draw_is_the_seeds_and_does_not_depend_on_the_neighbours() -> None:
    trace = synthetic_trace(1)
    jobs = workload_of(trace, ORACLE, 7, 64)
    assert jobs == workload_of(trace, ORACLE, 7, 64) != workload_of(trace, ORACLE, 8, 64)
    assert jobs[500:600] == workload_of(trace[500:600], ORACLE, 7, 64)


@pytest.mark.slow
def test_every_kind_is_drawn_classes_evenly() -> None:
    jobs = workload_of(synthetic_trace(1, jobs=12_000), ORACLE, 7, 64)
    classes = Counter(job.model_class for job in jobs if job.gpus == 1)
    assert set(classes) == set(MODEL_CLASSES)
    assert max(classes.values()) / min(classes.values()) < 1.15
    kinds = {(job.model_class, job.global_batch_size) for job in jobs}
    assert kinds == {(name, batch) for name, model in MODEL_CLASSES.items() for batch in model.pool}


def test_a_cluster_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="0 GPUs"):
        workload_of([], ORACLE, 0, 0)
