"""The one gRPC call: against gRPC's own server, frames made by hand, and every end that a server may come to."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from flyball_agent.wire.unary_call import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    STATUSES,
    CallFailed,
    _is_ok,
    call,
)
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import until

METHOD = "/v1.PodResourcesLister/List"
MOST = 1 << 20
BEGINNING = [(":status", "200"), ("content-type", "application/grpc")]


def frame(kind: int, flags: int = 0, payload: bytes = b"", stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(*pairs: tuple[str, str], flags: int = END_HEADERS, huffman: bool = True) -> bytes:
    return frame(HEADERS, flags, Encoder().encode(pairs, huffman=huffman))


def message(body: bytes) -> bytes:
    return b"\0" + len(body).to_bytes(4, "big") + body


TRAILERS = headers(("grpc-status", "0"), flags=END_HEADERS | END_STREAM)


@asynccontextmanager
async def serving(answer: bytes, heard: bytearray | None = None) -> AsyncIterator[str]:
    """A server that takes whatever comes and answers with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(2**16)
        writer.write(answer)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):  # who calls lets go of the line once it has its answer
            while first:
                if heard is not None:
                    heard.extend(first)
                first = await reader.read(2**16)
        writer.close()

    with tempfile.TemporaryDirectory(prefix="fu", dir="/tmp") as folder:  # short, for the socket's path
        path = str(Path(folder) / "s.sock")
        server = await asyncio.start_unix_server(serve, path)
        try:
            yield path
        finally:
            server.close()


async def answered(answer: bytes, most: int = MOST) -> bytes:
    async with serving(answer) as path:
        return await call(path, METHOD, b"", most)


@pytest.mark.parametrize("size", [0, 5, 16_379, 16_380, 200_000])
async def test_grpcs_own_server_understands_and_is_understood(tmp_path: Path, size: int) -> None:
    heard: list[bytes] = []

    async def answer(request: bytes, context: object) -> bytes:
        heard.append(request)
        return b"x" * size

    service, _, name = METHOD[1:].partition("/")
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    server.add_insecure_port(f"unix://{tmp_path / 's.sock'}")
    await server.start()
    try:
        for request in (b"", b"asked"):
            assert await call(str(tmp_path / "s.sock"), METHOD, request, MOST) == b"x" * size
        assert heard == [b"", b"asked"]
        with pytest.raises(CallFailed, match="UNIMPLEMENTED: Method not found"):
            await call(str(tmp_path / "s.sock"), "/v1.PodResourcesLister/Other", b"", MOST)
        if size:
            with pytest.raises(CallFailed, match=f"more than {size - 1} bytes"):
                await call(str(tmp_path / "s.sock"), METHOD, b"", size - 1)
    finally:
        await server.stop(None)


async def test_whatever_a_server_may_send_beside_the_answer_is_taken() -> None:
    heard = bytearray()
    padded = bytes([3]) + message(b"abc")[:4] + b"\0\0\0"
    block = Encoder().encode([("grpc-status", "0")])
    prioritized = bytes([2]) + b"\0\0\0\0\x10" + Encoder().encode(BEGINNING) + b"\0\0"
    answer = b"".join(
        (
            frame(SETTINGS, 0, b"\0\x03\0\0\0\x64", stream=0),
            frame(SETTINGS, ACK, stream=0),
            frame(PING, 0, b"12345678", stream=0),
            frame(0xF0, 0xFF, b"of a kind that nobody knows", stream=9),
            headers((":status", "103")),
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, prioritized),
            frame(DATA, PADDED, padded),
            frame(DATA, 0, b""),
            frame(GOAWAY, 0, (1).to_bytes(4, "big") + bytes(4), stream=0),
            frame(DATA, 0, message(b"abc")[4:]),
            frame(HEADERS, END_STREAM, block[:1]),
            frame(CONTINUATION, 0, block[1:3]),
            frame(CONTINUATION, END_HEADERS, block[3:]),
        )
    )
    async with serving(answer, heard) as path:
        assert await call(path, METHOD, b"", MOST) == b"abc"
        await until(lambda: frame(PING, ACK, b"12345678", stream=0) in heard)
    assert heard.startswith(PREFACE)
    assert frame(SETTINGS, ACK, stream=0) in heard


def test_the_request_is_one_that_http_knows() -> None:
    from flyball_agent.wire.unary_call import _request

    sent, frames = _request(METHOD, b"asked"), []
    assert sent.startswith(PREFACE)
    sent = sent[len(PREFACE) :]
    while sent:
        length = int.from_bytes(sent[:3], "big")
        frames.append((sent[3], sent[4], sent[9 : 9 + length]))
        sent = sent[9 + length :]
    assert [kind for kind, _, _ in frames] == [SETTINGS, 8, HEADERS, DATA]
    said = dict(Decoder().decode(frames[2][2]))
    assert said == {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    assert frames[3][1:] == (END_STREAM, message(b"asked"))


@pytest.mark.parametrize("number", range(1, len(STATUSES)))
async def test_a_refusal_is_told_in_the_servers_words(number: int) -> None:
    pairs = (*BEGINNING, ("grpc-status", str(number)), ("grpc-message", "no%20room: 100%25"))
    with pytest.raises(CallFailed, match=f"^{STATUSES[number]}: no room: 100%$"):
        await answered(headers(*pairs, flags=END_HEADERS | END_STREAM))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "connection ended"),
        (headers(*BEGINNING), "connection ended"),
        (headers(*BEGINNING) + frame(DATA, 0, message(b"abc")), "connection ended"),
        (headers(*BEGINNING) + TRAILERS, "not one message"),
        (headers(*BEGINNING) + frame(DATA, 0, message(b"abc")[:-1]) + TRAILERS, "not one message"),
        (headers(*BEGINNING) + frame(DATA, 0, 2 * message(b"abc")) + TRAILERS, "not one message"),
        (headers(*BEGINNING) + frame(DATA, 0, b"\1" + message(b"abc")[1:]) + TRAILERS, "not one message"),
        (headers(*BEGINNING) + frame(DATA, END_STREAM, message(b"abc")), "gRPC status missing"),
        (headers((":status", "404"), flags=END_HEADERS | END_STREAM), "HTTP status 404"),
        (headers(("grpc-status", "99"), flags=END_HEADERS | END_STREAM), "gRPC status 99"),
        (frame(RST_STREAM, 0, (11).to_bytes(4, "big")), "HTTP/2 error 11"),
        (frame(GOAWAY, 0, bytes(8) + b"going", stream=0), "takes no calls: b'going'"),
        (frame(DATA, 0, b"x" * 16_384)[:9].replace(b"\0\x40\0", b"\0\x40\x01"), "a frame of 16385 bytes"),
        (frame(DATA, PADDED, b""), "padded by more"),
        (frame(DATA, PADDED, b"\x05abc"), "padded by more"),
        (frame(HEADERS, 0, b"") + frame(DATA, 0, b""), "cut off, or without end"),
        (frame(HEADERS, 0, b"") + frame(CONTINUATION, 0, b"\0" * 16_384) * 9, "cut off, or without end"),
        (frame(HEADERS, END_HEADERS, b"\0" * 16_384) * 9, "more than 65536 bytes"),
        (frame(HEADERS, END_HEADERS | END_STREAM, b"\xff\xff\xff\xff\xff\xff"), "cannot be read"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of"),
    ],
)
async def test_what_is_no_answer_is_said(answer: bytes, words: str) -> None:
    with pytest.raises(CallFailed, match=words):
        await answered(answer)


async def test_nobody_there_is_an_error_of_the_systems(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await call(str(tmp_path / "none.sock"), METHOD, b"", MOST)


NAMES = st.sampled_from(["grpc-status", "grpc-message", "date", ":status", "server", "x-grpc-status"])
VALUES = st.sampled_from(["0", "1", "10", "200", "OK", ""]) | st.text("0123456789abc-", max_size=200)


@given(pairs=st.lists(st.tuples(NAMES, VALUES), max_size=6, unique_by=lambda pair: pair[0]), huffman=st.booleans())
def test_what_is_known_by_its_bytes_is_what_the_library_reads(pairs: list[tuple[str, str]], huffman: bool) -> None:
    """A block of its own, as of a connection's first answer: without one before there is nothing to be indexed by."""
    block = Encoder().encode(pairs, huffman=huffman)
    assert _is_ok(block) == (("grpc-status", "0") in pairs)


@given(st.binary(max_size=64))
def test_no_bytes_make_the_reading_of_them_fail(block: bytes) -> None:
    _is_ok(block)
