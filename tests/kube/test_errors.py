"""Why there was no answer is said in plain words, whichever library the request failed in."""

from __future__ import annotations

import asyncio
import errno
import socket

import aiohttp
import pytest
from flyball_kube.errors import why_unanswered


async def of_aiohttp(url: str) -> aiohttp.ClientError:
    """What aiohttp raises for a request that nobody answers."""
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError) as raised:
            await session.get(url)
    return raised.value


async def test_a_refused_connection_is_called_that() -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        port = nobody_listens.getsockname()[1]
        assert why_unanswered(await of_aiohttp(f"http://127.0.0.1:{port}/")) == "connection refused"


async def test_a_name_that_nobody_knows_is_called_that() -> None:
    assert why_unanswered(await of_aiohttp("http://nobody.invalid/")) == "nobody knows that name"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (OSError(errno.ENETUNREACH, "x"), "network is unreachable"),
        (socket.gaierror(-2, "Name or service not known"), "nobody knows that name"),
        (TimeoutError(), "no answer in time"),
        (asyncio.IncompleteReadError(b"", 3), "the connection was closed"),
        (aiohttp.ServerDisconnectedError(), "the connection was closed"),
        (ConnectionResetError(), "the connection was closed"),
        (ValueError("what nobody thought of"), "ValueError: what nobody thought of"),
    ],
)
def test_every_way_to_get_no_answer_has_its_words(error: Exception, words: str) -> None:
    assert why_unanswered(error) == words
