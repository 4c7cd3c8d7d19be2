"""The pages of a list: each soon, and of bounded size, whatever the objects are."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from flyball_kube.errors import ApiUnreachable
from flyball_kube.http.transport import AnswerTooLarge
from flyball_kube.process.logs import get_logger
from flyball_kube.session import ApiSession, JsonObject

PAGE_SIZE = 500
# Whoever may create objects may make each a hundred times as large as they are: 500 of those would take longer than an
# answer may, and more memory than there is. A page that would be larger than this is asked for in parts.
MAX_PAGE_BYTES = 16 * 1024 * 1024
PARTS_OF_A_PAGE = 4


class Pages:
    """The pages of the lists at one path; whoever waits longer than `answer_seconds` for one asks again beside it."""

    def __init__(self, session: ApiSession, path: str, answer_seconds: float) -> None:
        self._log = get_logger(__name__, path=path)
        self._session = session
        self._path = path
        self._answer_seconds = answer_seconds
        self._size = PAGE_SIZE

    async def next(self, params: Mapping[str, str]) -> JsonObject:
        """The page that these parameters lead to. Where its objects are too large, it and those after it have fewer."""
        while True:
            try:
                return await self._answered({**params, "limit": str(self._size)})
            except ApiUnreachable as error:
                if not _too_large(error) or self._size == 1:
                    raise
            self._size = max(1, self._size // PARTS_OF_A_PAGE)
            self._log.warning("objects are large; fewer are listed at a time", at_a_time=self._size)

    async def _asked(self, params: Mapping[str, str]) -> JsonObject:
        return await self._session.page(self._path, params, MAX_PAGE_BYTES)

    async def _answered(self, params: Mapping[str, str]) -> JsonObject:
        """One page: the first answer to whoever was asked for it.

        A request that is lost has no answer until its time is over, and one of an overloaded server has a late one: so the
        first request is left to itself, and beside it there is one more at a time. A refusal is an answer, too.
        """
        if math.isinf(self._answer_seconds):
            return await self._asked(params)
        asked = [asyncio.create_task(self._asked(params))]
        try:
            while True:
                ended, _ = await asyncio.wait(asked, timeout=self._answer_seconds, return_when=asyncio.FIRST_COMPLETED)
                answered = [request for request in ended if _is_answer(request.exception())]
                if answered or asked[0] in ended:
                    return min(answered, key=lambda each: each.exception() is not None, default=asked[0]).result()
                asked = [request for request in asked if request not in ended]
                if not ended:
                    for request in asked[1:]:
                        request.cancel()
                    asked[1:] = [asyncio.create_task(self._asked(params))]
        finally:
            for request in asked:
                request.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


def _too_large(error: BaseException) -> bool:
    return isinstance(error.__cause__, AnswerTooLarge)


def _is_answer(error: BaseException | None) -> bool:
    return not isinstance(error, ApiUnreachable) or _too_large(error)
