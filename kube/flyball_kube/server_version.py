"""The API server's Kubernetes version, and whether its resourceVersions may be compared.

Informers take the higher of two resourceVersions for the newer object. Kubernetes promises that order since 1.35; on an
older server a local copy could keep an old object over a new one, and a power cap would be held on it.
"""

from __future__ import annotations

import re

from flyball_kube.backoff import Backoff
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.logs import get_logger
from flyball_kube.session import ApiSession

logger = get_logger(__name__)

VERSION_PATH = "/version"
FIRST_ORDERED = (1, 35)
NEEDED = f"Kubernetes {FIRST_ORDERED[0]}.{FIRST_ORDERED[1]} or later"


class ServerTooOld(Exception):
    """The API server is of a Kubernetes version that does not promise the order of resourceVersions."""


async def require_ordered_versions(session: ApiSession) -> None:
    """Return once the API server is known to order its resourceVersions; waits for as long as it cannot be reached.

    A server that keeps its version to itself (RBAC may forbid the question, a proxy may not pass it on) is taken as new
    enough, with a warning. Raises ServerTooOld for a version before 1.35.
    """
    backoff = Backoff()
    while True:
        try:
            answer = await session.get(VERSION_PATH)
            break
        except ApiUnreachable as error:
            logger.warning("the server's version is unknown yet", error=str(error))
        except ApiError as error:
            if error.status < 500 and error.status != 429:
                logger.warning(f"the server's version is not shown; {NEEDED} is needed", error=str(error))
                return
            logger.warning("the server's version is unknown yet", error=str(error))
        await backoff.pause()
    numbers = [re.match(r"\d+", str(answer.get(part, ""))) for part in ("major", "minor")]  # a provider's minor: "35+"
    if numbers[0] is None or numbers[1] is None:
        logger.warning(f"the server's version cannot be read; {NEEDED} is needed", answer=answer)
        return
    version = (int(numbers[0][0]), int(numbers[1][0]))
    if version < FIRST_ORDERED:
        raise ServerTooOld(
            f"the API server is Kubernetes {version[0]}.{version[1]} ({answer.get('gitVersion', 'no gitVersion')}), "
            f"and {NEEDED} is needed: before it, which of two resourceVersions is the newer is not defined"
        )
