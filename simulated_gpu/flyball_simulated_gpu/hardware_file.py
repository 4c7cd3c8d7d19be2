"""The bytes of a simulated node's hardware file: layout, seqlock, record locks and recovery of a torn write.

docs/simulated-gpu.md is the definition; the C library and the referee of the tests implement it independently.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import uuid as uuid_module
from collections.abc import Callable, Sequence
from pathlib import Path

from flyball_simulated_gpu import physics
from flyball_simulated_gpu.clock import boottime_ns
from flyball_simulated_gpu.physics import DeviceConstants, DeviceState

MAGIC = b"FLYGPU01"
VERSION = 1
HEADER_BYTES = 256
RECORD_BYTES = 512
MAX_DEVICES = 256

_HEADER = struct.Struct("<8sIIQ40sIII")
_DRIVER_LOAD = struct.Struct("<Q")
_BOOT_ID = struct.Struct("<40s")
_DRIVER_LOAD_OFFSET, _BOOT_ID_OFFSET = 16, 24
_U32 = struct.Struct("@I")  # native: one store, never byte by byte
_FLAGS_OFFSET = 4
_CONSTANTS = struct.Struct("<48s64sIIIIIIIIdd")
_CONSTANTS_OFFSET = 8
_STATE = struct.Struct("<IIIIdIIQdQQIIII")
_STATE_OFFSET = 168
_STATE_END = _STATE_OFFSET + _STATE.size
# Right behind the state, and no part of what a torn write is undone to: the energy of a moment that has passed stays true.
_TICK = struct.Struct("<Qd")
_TICK_END = _STATE_END + _TICK.size
_COUNTER_PERIOD_OFFSET = 72
_UNDO_OFFSET = 384
_XID_OFFSET, _XIDS_OFFSET = 464, 468
_SPINS_BEFORE_RECOVERY = 1000


class HardwareFileError(ValueError):
    """A file that is not a simulated node's hardware; says what is wrong with it."""


def create_node_file(
    path: str | os.PathLike[str],
    devices: Sequence[DeviceConstants],
    boot_id: str | None = None,
    *,
    uuids: Sequence[str] | None = None,
    driver_load: int = 1,
    setter_latency_microseconds: int = 0,
    settle_milliseconds: int = 0,
    counter_milliseconds: int = 0,
    clock_ns: Callable[[], int] = boottime_ns,
) -> list[str]:
    """Make the hardware file of a node whose GPUs have just been powered, and return their UUIDs.

    The file appears whole or not at all (written beside, then renamed). `boot_id` and `uuids` default to random ones.
    Raises ValueError for no device, more than 256, or UUIDs that do not fit.
    """
    if not 0 < len(devices) <= MAX_DEVICES:
        raise ValueError(f"{path}: a node has 1 to {MAX_DEVICES} devices, not {len(devices)}")
    names = list(uuids) if uuids is not None else [f"GPU-{uuid_module.uuid4()}" for _ in devices]
    if len(names) != len(devices) or len(set(names)) != len(names) or any(len(name.encode()) >= 48 for name in names):
        raise ValueError(
            f"{path}: {len(devices)} devices need as many different UUIDs of at most 47 bytes, got {names}"
        )
    content = bytearray(HEADER_BYTES + RECORD_BYTES * len(devices))
    _HEADER.pack_into(
        content,
        0,
        MAGIC,
        VERSION,
        len(devices),
        driver_load,
        (boot_id or str(uuid_module.uuid4())).encode(),
        setter_latency_microseconds,
        settle_milliseconds,
        counter_milliseconds,
    )
    now_ns = clock_ns()
    for index, (name, constants) in enumerate(zip(names, devices, strict=True)):
        start = HEADER_BYTES + RECORD_BYTES * index
        _CONSTANTS.pack_into(
            content,
            start + _CONSTANTS_OFFSET,
            name.encode(),
            constants.product_name.encode(),
            constants.min_limit_milliwatts,
            constants.max_limit_milliwatts,
            constants.default_limit_milliwatts,
            constants.idle_milliwatts,
            constants.clock_min_megahertz,
            constants.clock_max_megahertz,
            constants.clock_step_megahertz,
            constants.knee_megahertz,
            constants.voltage_slope,
            constants.watts_per_megahertz,
        )
        content[start + _STATE_OFFSET : start + _TICK_END] = _pack(physics.power_on(constants, now_ns))
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_bytes(content)
    temporary.rename(target)
    return names


def _pack(state: DeviceState) -> bytes:
    return _STATE.pack(
        state.requested_limit_milliwatts,
        state.enforced_limit_milliwatts,
        state.locked_min_megahertz,
        state.locked_max_megahertz,
        state.activity,
        state.sm_clock_megahertz,
        state.power_milliwatts,
        state.updated_ns,
        state.energy_millijoules,
        state.pending_at_ns,
        state.energy_base_millijoules,
        state.pending_enforced_limit_milliwatts,
        state.pending_sm_clock_megahertz,
        state.pending_power_milliwatts,
        state.out_of_band_cap_milliwatts,
    ) + _TICK.pack(state.ticked_ns, state.ticked_millijoules)


class NodeFile:
    """One opening of a hardware file. Thread-safe; use one per process, or several: they exclude each other."""

    def __init__(self, path: str | os.PathLike[str], clock_ns: Callable[[], int] = boottime_ns) -> None:
        self.path = Path(path)
        self.clock_ns = clock_ns
        self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            size = os.fstat(self._file.fileno()).st_size
            if size < HEADER_BYTES:
                raise HardwareFileError(f"{self.path}: {size} bytes is no hardware file (the header alone has 256)")
            self.map = mmap.mmap(self._file.fileno(), size)
            magic, version, count, *_ = _HEADER.unpack_from(self.map)
            if magic != MAGIC or version != VERSION:
                raise HardwareFileError(
                    f"{self.path}: starts with {magic!r} version {version}, not {MAGIC!r} version 1"
                )
            if size != HEADER_BYTES + RECORD_BYTES * count:
                raise HardwareFileError(f"{self.path}: {size} bytes do not hold {count} devices")
        except BaseException:
            self._file.close()
            raise
        self.records = [RecordFile(self, index) for index in range(count)]

    @property
    def driver_load(self) -> int:
        return int(_DRIVER_LOAD.unpack_from(self.map, _DRIVER_LOAD_OFFSET)[0])

    @driver_load.setter
    def driver_load(self, value: int) -> None:
        _DRIVER_LOAD.pack_into(self.map, _DRIVER_LOAD_OFFSET, value)

    @property
    def boot_id(self) -> str:
        return str(_BOOT_ID.unpack_from(self.map, _BOOT_ID_OFFSET)[0].rstrip(b"\0").decode())

    @boot_id.setter
    def boot_id(self, value: str) -> None:
        _BOOT_ID.pack_into(self.map, _BOOT_ID_OFFSET, value.encode())

    @property
    def setter_latency_microseconds(self) -> int:
        return int(_U32.unpack_from(self.map, 64)[0])

    @property
    def settle_milliseconds(self) -> int:
        return int(_U32.unpack_from(self.map, 68)[0])

    def set_latency(self, setter_latency_microseconds: int, settle_milliseconds: int) -> None:
        """How slow the node's setters are, from now on."""
        _U32.pack_into(self.map, 64, setter_latency_microseconds)
        _U32.pack_into(self.map, 68, settle_milliseconds)

    @property
    def counter_milliseconds(self) -> int:
        return int(_U32.unpack_from(self.map, _COUNTER_PERIOD_OFFSET)[0])

    @counter_milliseconds.setter
    def counter_milliseconds(self, value: int) -> None:
        _U32.pack_into(self.map, _COUNTER_PERIOD_OFFSET, value)

    def store(self, offset: int, content: bytes) -> None:
        """Every write to a record goes through here (one copy, whole words first to last)."""
        self.map[offset : offset + len(content)] = content

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self.map.close()
        self._file.close()


class RecordFile:
    """The record of one device: constants, flags, and its state read by seqlock and written under the record's lock."""

    def __init__(self, node: NodeFile, index: int) -> None:
        self._node = node
        self._start = HEADER_BYTES + RECORD_BYTES * index
        self._thread_lock = threading.Lock()
        self._lock_request = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, self._start, RECORD_BYTES, 0)
        self._unlock_request = struct.pack("hhqqi0q", fcntl.F_UNLCK, os.SEEK_SET, self._start, RECORD_BYTES, 0)
        uuid, product, *numbers = _CONSTANTS.unpack_from(node.map, self._start + _CONSTANTS_OFFSET)
        self.index = index
        self.uuid: str = uuid.rstrip(b"\0").decode()
        self.constants = DeviceConstants(product.rstrip(b"\0").decode(), *numbers)

    @property
    def flags(self) -> int:
        return int(_U32.unpack_from(self._node.map, self._start + _FLAGS_OFFSET)[0])

    @flags.setter
    def flags(self, value: int) -> None:
        self._node.store(self._start + _FLAGS_OFFSET, _U32.pack(value))

    @property
    def xid_errors(self) -> tuple[int, int]:
        """How many Xid errors the driver has reported, and which the last one was."""
        (count,) = _U32.unpack_from(self._node.map, self._start + _XIDS_OFFSET)
        (last,) = _U32.unpack_from(self._node.map, self._start + _XID_OFFSET)
        return int(count), int(last)

    def report_xid_error(self, xid: int) -> None:
        """Have the driver report an Xid error; the count is written last, so that nobody takes an old number for it."""
        count, _ = self.xid_errors
        self._node.store(self._start + _XID_OFFSET, _U32.pack(xid))
        self._node.store(self._start + _XIDS_OFFSET, _U32.pack((count + 1) & 0xFFFFFFFF))

    def read(self) -> DeviceState:
        """The state, settled to now in the copy that is returned; takes no lock unless a writer died in its write."""
        memory, start = self._node.map, self._start
        first, last = start + _STATE_OFFSET, start + _TICK_END
        for _ in range(_SPINS_BEFORE_RECOVERY):
            now_ns = self._node.clock_ns()
            before = memory[start : start + 4]
            content = memory[first:last]
            if not before[0] & 1 and memory[start : start + 4] == before:
                state = self._unpack(content)
                physics.settle(state, now_ns)
                return state
        with self._thread_lock:
            self._acquire()
            try:
                self._recover()
                state = self._unpack(memory[first:last])
                # Still under the lock: the next writer's time is later, so no later read sees less energy.
                now_ns = self._node.clock_ns()
            finally:
                self._release()
        physics.settle(state, now_ns)
        return state

    def change(self, change: Callable[[DeviceConstants, DeviceState, int], None]) -> None:
        """Apply `change(constants, state, now_ns)`; a kill at any point leaves the old state or the new one."""
        node, start = self._node, self._start
        first, last = start + _STATE_OFFSET, start + _TICK_END
        with self._thread_lock:
            self._acquire()
            try:
                sequence = self._recover()
                content = node.map[first:last]
                node.store(start + _UNDO_OFFSET, content[: _STATE.size])
                state = self._unpack(content)
                node.store(start, _U32.pack((sequence + 1) & 0xFFFFFFFF))
                try:
                    # The time is read only now: a reader that still saw an even sequence took its own time before.
                    change(self.constants, state, node.clock_ns())
                    content = _pack(state)
                finally:
                    node.store(first, content)
                    node.store(start, _U32.pack((sequence + 2) & 0xFFFFFFFF))
            finally:
                self._release()

    def _unpack(self, content: bytes) -> DeviceState:
        state = DeviceState(*_STATE.unpack_from(content), *_TICK.unpack_from(content, _STATE.size))
        state.counter_period_ns = self._node.counter_milliseconds * 1_000_000
        return state

    def _acquire(self) -> None:
        fcntl.fcntl(self._node.fileno(), fcntl.F_OFD_SETLKW, self._lock_request)

    def _release(self) -> None:
        fcntl.fcntl(self._node.fileno(), fcntl.F_OFD_SETLKW, self._unlock_request)

    def _recover(self) -> int:
        """Under the lock: undo what a dead writer left half done; returns the (even) sequence."""
        node, start = self._node, self._start
        sequence = int(_U32.unpack_from(node.map, start)[0])
        if sequence & 1:
            node.store(start + _STATE_OFFSET, node.map[start + _UNDO_OFFSET : start + _UNDO_OFFSET + _STATE.size])
            sequence = (sequence + 1) & 0xFFFFFFFF
            node.store(start, _U32.pack(sequence))
        return sequence
