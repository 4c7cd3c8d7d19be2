"""What NVIDIA's container runtime is on a GPU node: called in place of runc, gives containers the driver, and calls runc.

A container whose environment has `NVIDIA_VISIBLE_DEVICES` gets the NVML library over the node's simulated GPUs and their
hardware file, whether a device plugin has set the variable (to UUIDs) or its image or pod has (to `all`). As hardware
does, the library lets only those set limits that have CAP_SYS_ADMIN.

Run by file name, on each start of a container: this needs nothing but the standard library.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NONE_VISIBLE = ("", "void", "none")
LIBRARY = "libnvidia-ml.so.1"
LIBRARY_DIRECTORY = "/usr/local/nvidia/lib64"
HARDWARE = "/usr/local/nvidia/gpus"
NEEDED_TO_SET_LIMITS = "CAP_SYS_ADMIN"


def wrapper(interpreter: str, runtime: str, hardware: str, library: str) -> str:
    """The text of the program that containerd calls. Only what creates a container is looked at."""
    edit = f'"{interpreter}" -IS "{Path(__file__).resolve()}" "{runtime}" "{hardware}" "{library}" "$@"'
    return f'#!/bin/sh\ncase " $* " in *" create "*) exec {edit};; esac\nexec "{runtime}" "$@"\n'


def furnish(container: dict[str, Any], hardware: str, library: str) -> bool:
    """Add the driver to a container's OCI configuration, if it asks for GPUs; whether it does."""
    process = container["process"]
    environment = process.setdefault("env", [])
    variables = dict(variable.split("=", 1) for variable in environment if "=" in variable)
    if variables.get(VISIBLE_DEVICES, "") in NONE_VISIBLE:
        return False
    search = filter(None, (LIBRARY_DIRECTORY, variables.get("LD_LIBRARY_PATH")))
    given = {"LD_LIBRARY_PATH": ":".join(search), "FLYBALL_SIMULATED_GPUS": HARDWARE}
    if NEEDED_TO_SET_LIMITS in process.get("capabilities", {}).get("effective", []):
        given["FLYBALL_SIMULATED_PRIVILEGED"] = "1"
    process["env"] = [variable for variable in environment if variable.split("=", 1)[0] not in given]
    process["env"] += [f"{name}={value}" for name, value in given.items()]
    mounts = ((library, f"{LIBRARY_DIRECTORY}/{LIBRARY}", "ro"), (hardware, HARDWARE, "rw"))
    container.setdefault("mounts", []).extend(
        {"source": source, "destination": destination, "type": "bind", "options": ["bind", mode, "nosuid", "nodev"]}
        for source, destination, mode in mounts
    )
    return True


def main(arguments: list[str]) -> NoReturn:
    runtime, hardware, library, *rest = arguments
    bundle = next(Path(after) for option, after in itertools.pairwise(rest) if option in ("--bundle", "-b"))
    path = bundle / "config.json"
    container = json.loads(path.read_text())
    if furnish(container, hardware, library):
        path.write_text(json.dumps(container))
    os.execv(runtime, [runtime, *rest])  # noqa: S606 - no shell on purpose


if __name__ == "__main__":
    main(sys.argv[1:])
