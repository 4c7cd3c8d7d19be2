"""No process that may write to a Unix socket of ours can have its open files closed by us."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
from flyball_agent.wire.descriptors import refuse_descriptors

from tests.support.descriptors import KERNEL_REFUSES, send_with_descriptor


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_message_with_an_open_file_is_refused_and_one_without_is_taken(
    kind: socket.SocketKind, tmp_path: Path
) -> None:
    path = os.path.relpath(tmp_path / "s")  # a Unix socket's path has 107 bytes
    with socket.socket(socket.AF_UNIX, kind) as receiving, socket.socket(socket.AF_UNIX, kind) as sender:
        assert refuse_descriptors(receiving) is KERNEL_REFUSES
        receiving.bind(path)
        if kind is not socket.SOCK_DGRAM:
            receiving.listen()
        sender.connect(path)
        assert send_with_descriptor(sender) is not KERNEL_REFUSES  # of a connection that nobody has taken yet, too
        sender.send(b"without")
        if kind is socket.SOCK_DGRAM:
            assert receiving.recv(100).endswith(b"without")
            return
        taken, _ = receiving.accept()
        with taken:
            assert taken.recv(100).endswith(b"without")
            assert send_with_descriptor(sender) is not KERNEL_REFUSES


def test_an_older_kernel_is_told_of_and_anything_else_is_raised() -> None:
    class Kernel(socket.socket):
        answer = errno.ENOPROTOOPT

        def setsockopt(self, *_: object) -> None:  # type: ignore[override]
            raise OSError(self.answer, os.strerror(self.answer))

    with Kernel(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        assert not refuse_descriptors(receiving)
        receiving.answer = errno.EBADF
        with pytest.raises(OSError, match="Bad file descriptor"):
            refuse_descriptors(receiving)
