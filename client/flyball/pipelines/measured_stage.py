"""Where what was measured of a stage goes: into a file for whoever plans by it, or to the node's agent, for the operator to
have a plan made of it."""

from __future__ import annotations

import logging
import os
import threading
from typing import Callable

from flyball.node.agent import AgentError, Caller
from flyball.pipelines.stage_profile import StageProfile, csv_of, rows_of

logger = logging.getLogger("flyball")

# The agent keeps a profile in its memory alone: one that has been started again is told anew within this time.
RENEW_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 1.0

Keep = Callable[[int, StageProfile], None]
"""Takes the profile of a stage (by its number) that is done. Raises OSError where it cannot be kept."""


def keep_in(folder: str) -> Keep:
    """Into `folder/stage-00000.csv` and so on: the lines of `flyball frontier --profile`, without a header."""

    def keep(stage: int, profile: StageProfile) -> None:
        path = os.path.join(folder, f"stage-{stage:05d}.csv")
        os.makedirs(folder, exist_ok=True)
        with open(f"{path}.part", "w", encoding="utf-8") as file:
            file.write(csv_of(stage, profile.rows))
        os.replace(f"{path}.part", path)

    return keep


def report_to(agent: Caller) -> Keep:
    """To the agent, in a thread of its own: again and again while the training goes on, for agents are started anew."""

    def keep(stage: int, profile: StageProfile) -> None:
        body = {
            "stage": stage,
            "waitingMilliwatts": round((profile.waiting_watts or 0.0) * 1e3),
            "rows": rows_of(profile.rows),
        }
        sender = threading.Thread(target=_send, args=(agent, body), name="flyball-profile", daemon=True)
        sender.start()

    return keep


def _send(agent: Caller, body: dict[str, object], wait: Callable[[float], object] | None = None) -> None:
    pause, wait = FIRST_PAUSE_SECONDS, wait or threading.Event().wait
    warned = False
    while True:
        try:
            agent.call("POST", "/v1/profile", body)
            pause = RENEW_SECONDS
        except AgentError as error:
            if not warned:
                warned = True
                logger.warning("no plan is made yet of what was measured, training goes on: %s", error)
            pause = min(RENEW_SECONDS, 2 * pause)
        wait(pause)
