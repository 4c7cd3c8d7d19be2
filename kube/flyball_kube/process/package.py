"""Which version of Flyball runs."""

from __future__ import annotations


def package_version() -> str:
    """The installed distribution's version, "0" where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # 26 modules, which an enforcer does not need

    try:
        return version("flyball")
    except PackageNotFoundError:
        return "0"
