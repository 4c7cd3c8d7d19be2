"""`make train-demo`: real training as an EnergyAwareJob, grown, shrunk, killed and cut, beside the same left alone.

Processes in place of pods: PyTorch under torchrun on this machine's processor, on a real control plane with simulated GPUs.
With --pods containers on two real nodes, which needs root: there it is evicted, and a node drained, too.
Exits with 1 where the samples or the losses of the two differ, or a cap that was reported as enforced was exceeded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.realnode.cluster import UnfitMachineError
from flyball_testbed.site import Site, SitePlan
from flyball_testbed.training import pods, pytorch
from flyball_testbed.training.journals import compare, history, read_steps
from flyball_testbed.training.picture import Event, draw
from flyball_testbed.training.pytorch import NoPyTorchError
from flyball_testbed.training.run import GPUS, PACE, DemoFailed, Run, Training
from flyball_testbed.workload.programs import PROCESSES_FILE, descendants

# Floating-point sums in another order, which the training amplifies: from 5e-6 in the first forty steps after a resize to
# 1e-3 after 400. What differs more is another training.
TOLERANCE = 5e-3


class ProcessSite:
    """One node of four GPUs, whose pods are processes of this machine."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def api(self) -> ApiClient:
        return self._site.cluster.api

    def check(self) -> None:
        self._site.check()

    def ranks(self) -> list[int]:
        state = self._site.directory / "workload" / "programs" / PROCESSES_FILE
        leaders = set(json.loads(state.read_text()).values())
        return [pid for leader in leaders for pid in descendants(leader)]


@contextlib.contextmanager
def started_site(out: Path, say: Callable[[str], None]) -> Iterator[Site]:
    """One node of four GPUs, whose pods' commands run."""
    plan = SitePlan(nodes=1, gpus_per_node=GPUS, operator_arguments=PACE, workload_arguments=("--run-programs",))
    site = Site.start(plan, out, say)
    try:
        yield site
    finally:
        # What the trainings said of themselves, for whoever has to find out why one failed.
        programs = site.directory / "workload" / "programs"
        if programs.exists():
            shutil.copytree(programs, out / "programs", dirs_exist_ok=True)
        site.stop()


def scenario(run: Run, training: Training, journal: Path, phase_steps: int) -> None:
    """All that befalls the job. Raises DemoFailed."""
    largest = GPUS * 400
    run.cap(largest, "")
    run.apply(training.manifest(journal), "submitted for 1 GPU")
    run.wait_steps(phase_steps, 1)
    for gpus in (4, 2):
        run.resize(gpus)
        run.wait_steps(phase_steps, gpus)
    run.kill_one_rank()
    run.wait_steps(phase_steps, 2)
    run.cap(largest * 3 // 5, "cap falls to 60 %")
    run.resize(4)
    run.wait_end()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make train-demo", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/train-demo"), help="the picture, journals and logs")
    parser.add_argument("--iterations", type=int, default=400, help="steps of the whole training")
    parser.add_argument("--phase-steps", type=int, default=40, help="steps between what befalls it, at the least")
    parser.add_argument("--pods", action="store_true", help="containers on two real nodes in place of processes; root")
    arguments = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    out: Path = arguments.output.resolve()
    shutil.rmtree(out, ignore_errors=True)
    # So that nothing that it has started trains on for nobody.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        training = Training(pytorch.get(say), arguments.iterations)
        say(f"trains {arguments.iterations} steps in one process, left alone")
        training.run_alone(out / "alone")
        journal = out / "elastic"
        journal.mkdir()
        if arguments.pods:
            with pods.started_site(out, say) as pod_site:
                run = Run(pod_site, journal, say)
                pods.scenario(run, training, out, arguments.phase_steps)
                referee = pod_site.referee_summary()
        else:
            with started_site(out, say) as site:
                run = Run(ProcessSite(site), journal, say)
                scenario(run, training, journal, arguments.phase_steps)
                referee = site.referee_summary()
    except (NoPyTorchError, UnfitMachineError, DemoFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return conclude(out, run.events, referee)


def conclude(out: Path, events: Sequence[Event], referee: Json) -> int:
    """Compare the journals in `out`, draw and say what came of it; 0 where both trainings are one."""
    alone, steps = history(read_steps(out / "alone")), read_steps(out / "elastic")
    elastic = history(steps)
    result = compare(elastic, alone)
    draw(alone, elastic, events, out / "train-demo.png")
    over = max((cap["max_limits_over_watts"] for cap in referee["caps"].values()), default=0.0)
    print(f"{result.steps} steps in {len({step.start for step in steps})} starts")
    print(f"sizes: {', '.join(str(size) for size in sorted({step.world_size for step in steps}))} GPUs")
    print(f"made again after the kill: {len(steps) - len(elastic)} steps")
    print("samples: the same, in the same order" if result.same_samples else "samples: OTHERS, OR IN ANOTHER ORDER")
    print(f"losses differ by at most {result.worst_loss_difference:.1e} of the loss")
    print(f"watts over a cap reported as enforced: {over:g}")
    print(out / "train-demo.png")
    return 0 if result.same_samples and result.worst_loss_difference < TOLERANCE and over == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
