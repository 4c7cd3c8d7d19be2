"""A Python that has PyTorch: one that is named, this one, or Debian's, unpacked once into the cache.

`python -m flyball_testbed.training.pytorch` gets it and prints it. Debian's is built for CPUs, with gloo: 180 MB are
fetched and 0.8 GB kept, where PyPI's has three GB of libraries for GPUs.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from flyball_testbed.controlplane.programs.binaries import Report
from flyball_testbed.controlplane.programs.build import locked
from flyball_testbed.images.build import DEBIAN_MIRROR

VARIABLE = "FLYBALL_TORCH_PYTHON"
RELEASE = "trixie"
PACKAGES = ("python3-torch", "python3-minimal", "base-files", "netbase", "tzdata", "libgcc-s1", "libstdc++6")
LEFT_OUT = ("usr/lib/libtorch-test", "usr/lib/python3/dist-packages/torch/test", "var/lib/apt", "var/cache")
LEFT_OUT_TOO = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")

# Debian's PyTorch is built without libuv, for which torchrun's stores ask unless told otherwise.
_WITHOUT_LIBUV = """

    class TCPStore(TCPStore):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **{**options, "use_libuv": False})

"""

# By its own loader it runs on an older Debian, without root and without a changed root.
_LAUNCHER = """#!/bin/sh
libraries={root}/usr/lib/x86_64-linux-gnu
exec env PYTHONHOME={root}/usr PYTHONPATH={root}/usr/lib/python3/dist-packages${{PYTHONPATH:+:$PYTHONPATH}} \\
  $libraries/ld-linux-x86-64.so.2 --library-path $libraries:$libraries/blas:$libraries/lapack:{root}/usr/lib \\
  {root}/usr/bin/python3.13 "$@"
"""


class NoPyTorchError(Exception):
    """There is no PyTorch, and none can be had; the message says how to bring one."""


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "flyball" / f"pytorch-{RELEASE}"


def known() -> str | None:
    """A Python with PyTorch that is there already; None where there is none."""
    if os.environ.get(VARIABLE):
        return os.environ[VARIABLE]
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    launcher = _cache() / "python"
    return str(launcher) if launcher.exists() else None


def get_debian(report: Report = lambda _line: None) -> Path:
    """The folder of Debian's PyTorch, as a root file system; fetched where it is not there. Raises NoPyTorchError."""
    root = _cache() / "root"
    return root if (_cache() / "python").exists() else Path(_fetch(report)).parent / "root"


def get(report: Report = lambda _line: None) -> str:
    """`known`, or Debian's, fetched now. Raises NoPyTorchError."""
    return known() or _fetch(report)


def _fetch(report: Report) -> str:
    reasons = [
        reason
        for reason, holds in {
            "this machine has no mmdebstrap": shutil.which("mmdebstrap") is None,
            "this user is not root": os.geteuid() != 0,
            f"this machine is a {platform.machine()}": platform.machine() != "x86_64",
        }.items()
        if holds
    ]
    if reasons:
        raise NoPyTorchError(
            f"no PyTorch, and Debian's cannot be unpacked ({', '.join(reasons)}): "
            f"install torch anywhere and name its Python in {VARIABLE}"
        )
    directory = _cache()
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / ".lock", report):
        if not (directory / "python").exists():
            _unpack(directory, report)
    return str(directory / "python")


def _unpack(directory: Path, report: Report) -> None:
    root, unfinished = directory / "root", directory / "unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    report(f"fetching Debian {RELEASE}'s PyTorch (180 MB, a minute)")
    include = ",".join(PACKAGES)
    command = ["mmdebstrap", "--mode=root", "--variant=extract", f"--include={include}", RELEASE]
    answer = subprocess.run([*command, str(unfinished), DEBIAN_MIRROR], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise NoPyTorchError("mmdebstrap failed:\n" + "\n".join(answer.stderr.splitlines()[-10:]))
    for name in (*LEFT_OUT, *LEFT_OUT_TOO):
        shutil.rmtree(unfinished / name, ignore_errors=True)
    module = unfinished / "usr/lib/python3/dist-packages/torch/distributed/__init__.py"
    text = module.read_text()
    end = text.index(")\n", text.index("TCPStore,")) + 2
    module.write_text(text[:end] + _WITHOUT_LIBUV + text[end:])
    shutil.rmtree(root, ignore_errors=True)
    unfinished.rename(root)
    launcher = directory / "python.new"
    launcher.write_text(_LAUNCHER.format(root=root))
    launcher.chmod(0o755)
    launcher.rename(directory / "python")


if __name__ == "__main__":
    try:
        print(get(lambda line: print(line, file=sys.stderr)))
    except NoPyTorchError as error:
        sys.exit(str(error))
