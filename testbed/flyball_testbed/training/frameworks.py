"""Frameworks over PyTorch for the Python that has it: fetched once into the cache, beside Debian's, as wheels for it.

`python -m flyball_testbed.training.frameworks` gets Hugging Face's Trainer and Lightning, and prints their folder.
What they need and Debian's PyTorch brings (NumPy, PyYAML, requests) is not fetched again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flyball_testbed.controlplane.programs.build import locked

PYTHON = "3.13"
WHEELS = (
    "transformers==4.57.1", "accelerate==1.11.0", "tokenizers==0.22.1", "safetensors==0.6.2", "huggingface-hub==0.36.0",
    "regex", "tqdm", "lightning==2.5.5", "lightning-utilities==0.15.2", "torchmetrics==1.8.2", "pytorch-lightning==2.5.5",
)  # fmt: skip


class NoFrameworksError(Exception):
    """They are not there, and cannot be had; the message has pip's words."""


def get() -> Path:
    """The folder that a training process adds to its PYTHONPATH. Raises NoFrameworksError."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "flyball" / f"frameworks-{PYTHON}"
    done = folder / ".done"
    wanted = "\n".join(WHEELS)
    with locked(folder.with_suffix(".lock")):
        if done.exists() and done.read_text() == wanted:
            return folder
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder)]
        command += ["--python-version", PYTHON, "--only-binary", ":all:", "--no-deps", *WHEELS]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            raise NoFrameworksError(f"pip cannot install {', '.join(WHEELS)}: {answer.stderr.strip()}")
        done.write_text(wanted)
    return folder


if __name__ == "__main__":
    try:
        print(get())
    except NoFrameworksError as error:
        sys.exit(str(error))
