"""What a process does that sends an open file with its message, to have whoever reads it close that."""

from __future__ import annotations

import os
import platform
import socket

KERNEL_REFUSES = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2]) >= (6, 16)
"""Whether this kernel can refuse such messages for whoever is to read them."""


def send_with_descriptor(sender: socket.socket) -> bool:
    """Send a message with an open file; False where it was refused because of that."""
    with open(os.devnull) as file:
        try:
            socket.send_fds(sender, [b"with a file"], [file.fileno()])
        except PermissionError:
            return False
    return True
