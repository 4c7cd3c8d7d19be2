"""Unix sockets through which no open file can be sent.

Whoever writes to a Unix socket may send open files with what he writes. The kernel closes those that nobody takes in the
process that reads, and to close a TCP connection takes as long as its sender has asked for (SO_LINGER): one small message
would hold up an agent for as long as a pod likes.
"""

from __future__ import annotations

import errno
import socket

# Of Linux 6.16; Python has no name for it. Connections have what the socket has that takes them.
SO_PASSRIGHTS = 83


def refuse_descriptors(receiving: socket.socket) -> bool:
    """Have the kernel refuse messages with open files (EPERM); False where it cannot, for it is older than Linux 6.16."""
    try:
        receiving.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError as error:
        if error.errno not in (errno.ENOPROTOOPT, errno.EOPNOTSUPP):
            raise
        return False
    return True
