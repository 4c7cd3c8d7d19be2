"""Reports to node agents what the ranks have done, over each pod's Unix socket, as the training client does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from flyball_testbed.workload.trainer import StepReport

TIMEOUT_SECONDS = 2.0


def socket_path(directory: Path, pod_uid: str) -> Path:
    """The socket that the agent serves for one pod alone, so that a report needs no name of its sender."""
    return directory / pod_uid / "flyball.sock"


async def post_steps(directory: Path, pod_uid: str, report: StepReport) -> bool:
    """POST /v1/steps; False where the agent is away or refuses (the next report includes what this one had)."""
    body = json.dumps(
        {
            "iterations": report.iterations,
            "windowIterations": report.window_iterations,
            "windowSeconds": report.window_seconds,
            "localBatchSize": report.local_batch_size,
        }
    ).encode()
    head = (
        "POST /v1/steps HTTP/1.1\r\nHost: flyball\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_unix_connection(socket_path(directory, pod_uid))
            try:
                writer.write(head.encode() + body)
                status = (await reader.readline()).split(b" ", 2)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return len(status) > 1 and status[1] == b"200"
