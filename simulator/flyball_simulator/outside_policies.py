"""Policies by name, also those of modules that are not ours: `module:Class`, as in `--policy my_policy:LargestFirst`.

A policy is a class without arguments that keeps the interface `flyball_planner.policies.view.Policy`. It is imported where
it is needed, in a comparison's processes too: these are given the parent's `sys.path`.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path

from flyball_planner.policies.registry import parted, policy_named
from flyball_planner.policies.view import Policy, Traits

SEPARATOR = ":"


def policy_of(name: str) -> Policy:
    """The policy of a name: the registry's, or `module:Class`; either with one of the registry's suffixes.

    Raises ValueError where there is no such module or class, or it is no policy.
    """
    base, rule = parted(name)
    return rule(_made(base)) if SEPARATOR in base else policy_named(name)


def outside_code(name: str) -> str:
    """A digest of the file that a policy from outside stands in; empty for one of ours.

    What that file imports is not in it.
    """
    base, _ = parted(name)
    if SEPARATOR not in base:
        return ""
    _made(base)
    path = sys.modules[base.partition(SEPARATOR)[0]].__file__
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12] if path else ""


def _made(base: str) -> Policy:
    module, _, attribute = base.partition(SEPARATOR)
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"policy {base!r}: {error}; a module is found in the working directory and where Python finds others"
        ) from None
    except AttributeError:
        raise ValueError(f"policy {base!r}: module {module} has no {attribute!r}") from None
    except (ValueError, TypeError, ImportError, SyntaxError) as error:
        raise ValueError(f"policy {base!r}: {error}") from error
    try:
        policy = kind()
    except TypeError as error:
        raise ValueError(f"policy {base!r} cannot be made without arguments: {error}") from None
    traits, decide, own = (getattr(policy, part, None) for part in ("traits", "decide", "name"))
    if not (isinstance(traits, Traits) and callable(decide) and isinstance(own, str)):
        raise ValueError(
            f"policy {base!r} is no policy: it needs a name, traits and decide(view), see policies/view.py"
        )
    return policy  # type: ignore[no-any-return]
