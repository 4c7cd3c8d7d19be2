"""Meters are read beside the loop: what a cycle takes is what was read last, and how long ago."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from flyball_api.power_cap import PowerCap
from flyball_operator.meters import meters
from flyball_operator.meters.meters import Meters
from flyball_operator.power.caps.meter import MeterReading

from tests.support.operator_objects import cap_view
from tests.support.waiting import until


class Bench:
    """A folder of files that meters are read from, and a clock of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.monotonic = 0.0
        self.woken = 0
        self.meters = Meters({}, folder, self._wake, lambda: datetime(2030, 1, 1, tzinfo=UTC), lambda: self.monotonic)

    def _wake(self) -> None:
        self.woken += 1

    def says(self, watts: float, time: float, name: str = "row") -> None:
        new = self.folder / "new"
        new.write_text(json.dumps({"watts": watts, "time": time}))
        new.replace(self.folder / name)

    def reading(self, name: str = "row") -> MeterReading:
        return self.meters.readings().get(f"uid-{name}", MeterReading())


def cap(name: str = "row", *, effective: int | None = 1000, **meter: object) -> PowerCap:
    status = {} if effective is None else {"effectiveWatts": effective}
    return cap_view(name, watts=1000, meter={"file": name, "intervalSeconds": 1, **meter}, status=status)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    item = Bench(tmp_path)
    yield item
    await item.meters.close()


async def test_the_last_reading_is_kept_with_the_moment_it_was_first_seen(bench: Bench) -> None:
    bench.says(700.0, 1.0)
    bench.monotonic = 50.0
    bench.meters.follow([cap()])
    await until(lambda: bench.reading().watts == 700.0)
    assert bench.reading() == MeterReading(700.0, 50.0, datetime(2030, 1, 1, tzinfo=UTC), "")
    bench.monotonic = 60.0  # read again, and it says the same at the same time
    await until(lambda: "not renewed" in bench.reading().error)
    assert bench.reading().seen_at == 50.0
    bench.says(710.0, 2.0)
    await until(lambda: bench.reading().watts == 710.0)
    assert bench.reading().seen_at == 60.0


async def test_a_meter_is_read_again_after_its_interval(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.Event().wait()

    monkeypatch.setattr(meters, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pause}))
    bench.says(700.0, 1.0)
    bench.meters.follow([cap("row", intervalSeconds=7), cap("other", intervalSeconds=3)])
    await until(lambda: sorted(pauses) == [3.0, 7.0])
    assert bench.reading().watts == 700.0


async def test_a_reading_that_fails_leaves_the_last_one_and_says_why(bench: Bench) -> None:
    bench.says(700.0, 1.0)
    bench.meters.follow([cap()])
    await until(lambda: bench.reading().watts == 700.0)
    (bench.folder / "row").unlink()
    await until(lambda: "No such file" in bench.reading().error)
    assert (bench.reading().watts, bench.reading().seen_at) == (700.0, 0.0)


async def test_only_what_is_above_the_target_wakes_the_loop(bench: Bench) -> None:
    bench.says(940.0, 1.0)
    bench.meters.follow([cap()])
    await until(lambda: bench.reading().watts == 940.0)
    assert bench.woken == 0
    bench.says(960.0, 2.0)
    await until(lambda: bench.woken == 1)


async def test_a_meter_that_is_gone_or_another_leaves_nothing(bench: Bench) -> None:
    bench.says(700.0, 1.0)
    bench.says(300.0, 1.0, "other")
    bench.meters.follow([cap(), cap("other")])
    await until(lambda: {bench.reading().watts, bench.reading("other").watts} == {700.0, 300.0})
    bench.meters.follow([cap("other")])
    assert bench.meters.readings().keys() == {"uid-other"}
    bench.meters.follow([cap("other", file="row")])
    assert bench.meters.readings() == {}
    await until(lambda: bench.reading("other").watts == 700.0)


async def test_one_meter_that_cannot_be_read_keeps_no_other_from_being(bench: Bench) -> None:
    bench.says(700.0, 1.0)
    bench.meters.follow([cap("absent"), cap()])
    await until(lambda: bench.reading().watts == 700.0)
    assert bench.reading("absent").watts is None
    assert "No such file" in bench.reading("absent").error
