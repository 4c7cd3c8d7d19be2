"""The enforcer as a process.

It has the privilege and neither network nor credential: nothing here, nor what this imports, imports either.
"""

from __future__ import annotations

from flyball_kube.process.logs import get_logger

from flyball_agent.govern.governor import Governor
from flyball_agent.link.server import EnforcerServer
from flyball_agent.process.common import (
    log_start,
    open_driver,
    open_journal,
    open_unless_released,
    until_one_ends,
    until_signalled,
)
from flyball_agent.process.options import OBSERVE, EnforcerOptions

logger = get_logger(__name__)


async def run_enforcer(options: EnforcerOptions) -> None:
    """Run the enforcer of one node until SIGTERM or SIGINT; every power limit and lock stays as it is.

    Raises AgentFailed where a fresh process may do better, and OSError where the socket cannot be made.
    """
    await until_signalled(_enforce(options))
    logger.info("enforcer stopped; limits stay as they are", node=options.node_name)


async def _enforce(options: EnforcerOptions) -> None:
    journal = await open_journal(options.journal_dir, options.node_name)
    driver = await open_unless_released(options)
    governor = Governor(
        options.node_name,
        driver,
        journal,
        open_driver=lambda: open_driver(options),
        tick_seconds=options.tick_seconds,
        observe=options.mode == OBSERVE,
    )
    try:
        log_start(governor, driver)
        server = EnforcerServer(governor, options.socket, agent_uid=options.agent_uid)
        await until_one_ends(governor.run(), server.serve())
    finally:
        await governor.close()
