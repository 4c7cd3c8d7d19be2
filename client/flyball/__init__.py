"""Flyball's client: training that is resized, stopped and measured, and goes on where it was.

    import flyball

    job = flyball.join()
    job.register(state_dict, load_state_dict)
    for epoch in job.epochs(3):
        for batch in job.loader(dataset):
            with job.step() as step:
                train(batch, step.weight)

The standard library is all that it needs. `flyball.torch` and `flyball.jax` have the same for those, and
`flyball.huggingface`, `flyball.lightning` and `flyball.keras` callbacks for their loops.
"""

from flyball.budget import Budget
from flyball.environment import InvalidEnvironment
from flyball.job import Job, join
from flyball.node.capabilities import GpuCapabilities, SetLatency
from flyball.node.measuring import Measurement
from flyball.pipelines.pipeline import Pipeline
from flyball.pipelines.plan import Kernels, Plan
from flyball.sampling import Part, Position
from flyball.step import Step

__all__ = [
    "Budget",
    "GpuCapabilities",
    "InvalidEnvironment",
    "Job",
    "Kernels",
    "Measurement",
    "Part",
    "Pipeline",
    "Plan",
    "Position",
    "SetLatency",
    "Step",
    "join",
]
