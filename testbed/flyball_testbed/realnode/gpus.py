"""A node's simulated GPUs, and what is compiled for nodes: the NVML library over them and the pods' first process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file

REPOSITORY = Path(__file__).resolve().parents[3]
LIBRARY_SOURCE = REPOSITORY / "simulated_gpu" / "nvml"
PAUSE_SOURCE = Path(__file__).with_name("pause.c")


def create_hardware(path: Path, product: str, gpus: int) -> list[str]:
    """Power a node's simulated GPUs for the first time; their UUIDs. Any container of theirs may write to them.

    Raises ValueError for a product that the catalogue does not have.
    """
    if product not in CATALOGUE:
        raise ValueError(f"no simulated GPU {product!r}; there are {', '.join(sorted(CATALOGUE))}")
    uuids = create_node_file(path, devices=[CATALOGUE[product]] * gpus)
    path.chmod(0o666)
    return uuids


class CompilerError(Exception):
    """What is written in C could not be compiled; the message has what the compiler said."""


def build_library(directory: Path) -> None:
    """Build the NVML library over simulated GPUs into a folder. Raises CompilerError."""
    _run(["make", "-s", "-C", str(LIBRARY_SOURCE), f"DESTINATION={directory}"])


def build_pause(target: Path) -> None:
    """Build the program of the pods' first process, without any library. Raises CompilerError."""
    _run([os.environ.get("CC", "cc"), "-static", "-Os", "-s", "-o", str(target), str(PAUSE_SOURCE)])


def _run(command: list[str]) -> None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CompilerError(f"no program {command[0]!r} on this machine") from error
    if answer.returncode != 0:
        raise CompilerError(f"{' '.join(command)}: {answer.stderr.strip()[-500:]}")
