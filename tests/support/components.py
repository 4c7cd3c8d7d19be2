"""What each process is made of: the packages that must import with its extra, and in its image."""

from __future__ import annotations

SHARED = ("flyball_api", "flyball_kube")
# Of the command line only what starts it: each command imports what it drives when it runs.
COMPONENTS = {
    "operator": (
        *SHARED,
        "flyball_operator",
        "flyball_planner",
        "flyball_processes",
        "flyball_views",
        "flyball_cli.main",
    ),
    "page": (*SHARED, "flyball_views", "flyball_page", "flyball_cli.main"),
    "service": (
        *SHARED,
        "flyball_planner",
        "flyball_processes",
        "flyball_frontiers.pipeline",
        "flyball_planner_service",
        "flyball_cli.main",
    ),
    "agent": (*SHARED, "flyball_agent", "flyball_simulated_gpu", "flyball_cli.main"),
}
COMMANDS = {name: (name, "run") for name in COMPONENTS} | {"service": ("planner", "serve")}
# Imports every module of the packages in argv[1], as JSON.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
for name in json.loads(sys.argv[1]):
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(found.name)
"""
