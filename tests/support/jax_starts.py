"""Starts of a training script on JAX, each in so many processes on this machine, as an EnergyAwareJob makes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from flyball_testbed.controlplane.ports import free_port
from flyball_testbed.training.journals import read_steps

from tests.support.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
ITERATIONS = 40


class Start:
    """One start of the example in so many processes."""

    def __init__(
        self,
        folder: Path,
        incarnation: int,
        processes: int,
        program: Path = ROOT / "examples/training/train_jax.py",
        *,
        iterations: int = ITERATIONS,
        global_batch: int = 12,
    ) -> None:
        self.journal = folder / "journal"
        self.journal.mkdir(parents=True, exist_ok=True)
        own = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "JAX_"))}
        own |= {
            "PYTHONPATH": str(ROOT / "client"),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
            "JAX_NUM_PROCESSES": str(processes),
            "FLYBALL_INCARNATION": str(incarnation),
            "FLYBALL_CHECKPOINT_DIR": str(folder),
            "FLYBALL_GLOBAL_BATCH_SIZE": str(global_batch),
            "FLYBALL_MAX_LOCAL_BATCH_SIZE": "6",
            "FLYBALL_ITERATIONS": str(iterations),
            "FLYBALL_STEP_JOURNAL": str(self.journal),
        }
        self.logs = [folder / f"log-{incarnation}-{rank}" for rank in range(processes)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            with log.open("w") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(program), str(ROOT / "LICENSE")],
                        env={**own, "JAX_PROCESS_ID": str(rank)},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    def wait_done(self, steps: int) -> None:
        """Until this many steps more are done than when it began."""
        wait_until(
            lambda: self.done >= steps or any(process.poll() is not None for process in self.processes),
            self.log,
            4 * PATIENCE_SECONDS,
        )
        assert all(process.poll() is None for process in self.processes), self.log()

    @property
    def done(self) -> int:
        return max((step.iteration for step in read_steps(self.journal)), default=0)

    def end(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def ended(self) -> list[int]:
        return [process.wait(4 * PATIENCE_SECONDS) for process in self.processes]

    def log(self) -> str:
        return "\n".join(log.read_text() for log in self.logs)
