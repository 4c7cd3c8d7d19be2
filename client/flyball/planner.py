"""Has a planner service (`flyball planner serve`) plan a pipeline: for notebooks, and trainings that no operator plans."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

# Each request of them is held open for so long; the service has its own deadline for a plan.
WAIT_SECONDS, ANSWER_SECONDS = 60, 90
MAX_REASON_BYTES = 4096


def ask_planner(
    profile: str,
    microbatches: int,
    blocking_watts: float,
    *,
    address: str | None = None,
    token: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The frontier of a pipeline as `flyball frontier --output` writes it, for a file that `job.pipeline` takes.

    `profile` is CSV with the columns stage, instruction, frequency (MHz), time (s) and energy (J), `blocking_watts` what a
    GPU draws while it waits; `more` is what the service takes besides, as `points=60`. The service is at `address`
    ($FLYBALL_PLANNER, or this machine's own), and has `token` ($FLYBALL_PLANNER_TOKEN) where it asks for one. It waits
    until there is a plan. Raises ValueError where the service refuses what it is asked, with its reason, and OSError where
    it does not answer, or cannot plan now.
    """
    where = address or os.environ.get("FLYBALL_PLANNER") or "http://127.0.0.1:8095"
    if not where.startswith(("http://", "https://")):
        raise ValueError(f"the planner's address {where!r} is not like http://127.0.0.1:8095")
    asked = {"profile": profile, "microbatches": microbatches, "blockingWatts": blocking_watts, **more}
    request = urllib.request.Request(f"{where}/v1/frontiers?wait={WAIT_SECONDS}", json.dumps(asked).encode())  # noqa: S310
    given = token or os.environ.get("FLYBALL_PLANNER_TOKEN")
    if given:
        request.add_header("Authorization", f"Bearer {given}")
    try:
        while True:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                if answer.status == 200:
                    plan: dict[str, Any] = json.load(answer)
                    return plan
            # It is still being planned: to ask again waits another minute.
    except urllib.error.HTTPError as error:
        refusal = f"the planner at {where} refuses with {error.code} {error.reason}: {_reason(error)}"
        raise (OSError(refusal) if error.code in (429, 503) else ValueError(refusal)) from None
    except urllib.error.URLError as error:
        raise OSError(f"no planner answers at {where}: {error.reason} ($FLYBALL_PLANNER says where it is)") from None


def _reason(error: urllib.error.HTTPError) -> str:
    """What the service says is wrong."""
    text = error.read(MAX_REASON_BYTES).decode(errors="replace")
    try:
        return str(json.loads(text)["reason"])
    except (ValueError, KeyError, TypeError):
        return text
