"""A partition's schedules measured by the client as a search asks for them: what they take, by how many processes."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import threading
from pathlib import Path

import pytest
from flyball import Kernels
from flyball.environment import Environment
from flyball.job import Job
from flyball.node.measuring import EnergyMeter, Measurement
from flyball.pipelines.partition import PartitionMeter, measure_all
from flyball.shared_values import SharedValues
from flyball_frontiers.kareus import choices, microbatch_frontier
from flyball_frontiers.kareus.search import PartitionSearch

from tests.support.waiting import PATIENCE_SECONDS

STATIC_WATTS = 120.0


def truth(clock: int, kernels: Kernels) -> tuple[float, float]:
    """Seconds and watts of one run: SMs that communicate do not compute, what is launched late is waited for."""
    late = 3 if kernels.launch_kernel < 0 else kernels.launch_kernel
    seconds = 0.02 * 1410 / clock * (1 + 0.01 * kernels.communication_sms) + 0.03 / kernels.communication_sms * (
        1 + late
    )
    return seconds, STATIC_WATTS + 280 * (clock / 1410) ** 2.5


class Board:
    """A GPU whose time goes by as it runs; `falls_short`: it runs so many megahertz below what it is asked for."""

    def __init__(self, falls_short: int = 0, knows: bool = True) -> None:
        self.seconds = 1000.0
        self.joules = 5.0
        self.clock = 0
        self.runs = 0
        self._falls_short = falls_short
        self._knows = knows

    def ask(self, megahertz: int) -> None:
        self.clock = megahertz - self._falls_short

    def run(self, kernels: Kernels) -> None:
        seconds, watts = truth(self.clock, kernels)
        self.seconds += seconds
        self.joules += seconds * watts
        self.runs += 1

    def meter(self) -> EnergyMeter:
        board = self

        class Meter(EnergyMeter):
            def read(self) -> tuple[float, float | None]:
                return board.seconds, board.joules if board._knows else None

        return Meter(None)

    def measures(self, **of_several: object) -> PartitionMeter:
        return PartitionMeter(
            self.run,
            ask_clock=self.ask,
            megahertz=lambda: self.clock,
            measure=lambda: Measurement("partition", self.meter(), lambda: self.seconds),
            monotonic=lambda: self.seconds,
            **of_several,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("kernels", [Kernels(6, 0), Kernels(12, 2), Kernels(3, -1)])
def test_a_schedule_takes_what_it_takes(kernels: Kernels) -> None:
    board = Board()
    seconds, joules = board.measures().measured(1200, kernels)
    wanted, watts = truth(1200, kernels)
    assert seconds == pytest.approx(wanted, rel=1e-9)
    assert joules == pytest.approx(wanted * watts, rel=1e-9)
    assert board.runs * wanted > 8.0, (
        "long enough for the clock to come, and for a counter that moves ten times a second"
    )


def test_a_clock_that_is_not_reached_or_joules_that_nobody_knows_are_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="does not run at 1410 MHz"):
        Board(falls_short=60).measures().measured(1410, Kernels(6, 0))
    with pytest.raises(RuntimeError, match="does not say what the GPUs use"):
        Board(knows=False).measures().measured(1410, Kernels(6, 0))


def test_a_job_whose_pods_have_no_agent_says_so_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="FLYBALL_SOCKET names no agent"):
        Job(Environment.read({}, 1)).measure_partition(str(tmp_path), lambda kernels: None)


def test_all_processes_run_it_equally_often_and_their_joules_are_added_up(tmp_path: Path) -> None:
    """A collective that one of them runs once more is waited for for ever."""
    boards, together = [Board(), Board(), Board()], threading.Barrier(3)
    found: dict[int, tuple[float, float]] = {}

    def process(rank: int) -> None:
        board = boards[rank]

        def run(kernels: Kernels) -> None:
            together.wait(PATIENCE_SECONDS)
            board.run(kernels)
            board.seconds += 0.001 * rank  # by its own watch

        meter = PartitionMeter(
            run,
            ask_clock=board.ask,
            megahertz=lambda: board.clock,
            # The first two are in one pod, whose GPUs one of them measures.
            measure=None if rank == 1 else lambda: Measurement("partition", board.meter(), lambda: board.seconds),
            rank=rank,
            world_size=3,
            values=SharedValues(str(tmp_path)),
            monotonic=lambda: board.seconds,
        )
        for kernels in (Kernels(6, 0), Kernels(12, 1)):
            found[rank] = meter.measured(1410, kernels)

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert len({board.runs for board in boards}) == 1
    seconds, watts = truth(1410, Kernels(12, 1))
    assert found == {rank: (pytest.approx(seconds + 0.002), pytest.approx(2 * seconds * watts)) for rank in range(3)}


def test_a_second_search_reads_none_of_the_first_ones_words(tmp_path: Path) -> None:
    """They stay in the volume: a process that is ahead would run it as often as the first search did, and not wait."""
    first, second = runs_of_search(tmp_path, 1, 0.5), runs_of_search(tmp_path, 2, 0.1)
    assert len(set(first)) == len(set(second)) == 1
    assert second[0] > first[0]


def runs_of_search(folder: Path, number: int, seconds: float) -> list[int]:
    """How often each of two processes runs a partition that takes so long, where the one that does not lead is ahead."""
    boards, ahead = [Board(), Board()], threading.Event()

    class Values(SharedValues):
        def pause(self) -> None:
            ahead.set()
            super().pause()

    def process(rank: int) -> None:
        board = boards[rank]

        def run(kernels: Kernels) -> None:
            board.runs += 1
            board.seconds += seconds
            board.joules += 1.0

        meter = PartitionMeter(
            run,
            ask_clock=board.ask,
            megahertz=lambda: None,
            measure=lambda: Measurement("partition", board.meter(), lambda: board.seconds),
            rank=rank,
            world_size=2,
            search=number,
            values=Values(str(folder)),
            monotonic=lambda: board.seconds,
        )
        if rank == 0:
            assert ahead.wait(PATIENCE_SECONDS)
        meter.measured(1410, Kernels(6, 0))
        ahead.set()

    threads = [threading.Thread(target=process, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    return [board.runs for board in boards]


def test_a_search_asks_and_a_job_measures_until_the_frontier_is_known(tmp_path: Path) -> None:
    """The command beside the job, through files of its volume; what was measured is what a plan is composed of."""
    command = [
        str(Path(sysconfig.get_path("scripts")) / "flyball"), "kareus", "search", str(tmp_path), "--clocks", "1410:1290:60",
        "--sms", "6:12:6", "--kernels", "2", "--static-power", str(STATIC_WATTS), "--effort", "0.1",
    ]  # fmt: skip
    once = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "batch 0 is to be measured: 5 schedules" in once.stdout
    wait = ["--wait", str(4 * PATIENCE_SECONDS)]
    searching = subprocess.Popen([*command, *wait], stdout=subprocess.PIPE, text=True)
    done: list[int] = []
    job = threading.Thread(
        target=lambda: done.append(measure_all(Board().measures(), str(tmp_path), leads=True)), daemon=True
    )
    job.start()
    try:
        said = searching.communicate(timeout=4 * PATIENCE_SECONDS)[0]
        job.join(PATIENCE_SECONDS)
    finally:
        searching.kill()
        searching.wait()
    search = PartitionSearch.from_json(json.loads((tmp_path / "search.json").read_text()))
    assert done == [len(search.samples)]
    assert search.done
    assert search.batch > 1, "one batch after the other"
    assert f"{len(search.samples)} schedules of 18 measured" in said
    for sample in search.samples:
        schedule = sample.schedule
        kernels = Kernels(schedule.communication_sms, schedule.launch_kernel, schedule.last_kernel)
        seconds, watts = truth(schedule.clock_megahertz, kernels)
        assert sample.measurement.time_seconds == pytest.approx(seconds)
        assert sample.measurement.energy_joules == pytest.approx(seconds * watts)
    space = search.candidates
    composed = microbatch_frontier([choices("attention", 3, search)], {}, {}, STATIC_WATTS)
    best = min(truth(each.clock_megahertz, Kernels(each.communication_sms, each.launch_kernel))[0] for each in space)
    assert 3 * best <= composed.t_min * (1 + 1e-9) <= 3 * 1.05 * best


@pytest.mark.parametrize("text", ["{", "[]", '{"batch": 1}', '{"batch": 1, "schedules": [{"clock_megahertz": 5}]}'])
def test_what_is_not_asked_by_a_search_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "asked.json").write_text(text)
    with pytest.raises(ValueError, match=r"asked\.json is not what `flyball kareus search` writes"):
        measure_all(Board().measures(), str(tmp_path), leads=True)


def test_files_of_no_search_are_refused_by_the_command(tmp_path: Path) -> None:
    command = [str(Path(sysconfig.get_path("scripts")) / "flyball"), "kareus", "search", str(tmp_path)]
    wrong = subprocess.run([*command, "--clocks", "1410"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "is not three whole numbers like 1410:900:30" in " ".join(wrong.stderr.split())
    for option, value, said in (
        ("--sms", "30", "is not three whole numbers like 3:30:3"),
        ("--sms", "30:3:3", "--sms 30:3:3: the least come first, as 3:30:3"),
        ("--clocks", "900:1410:30", "--clocks 900:1410:30: the highest comes first, as 1410:900:30"),
    ):
        wrong = subprocess.run([*command, option, value], capture_output=True, text=True)
        assert wrong.returncode == 2
        assert said in " ".join(wrong.stderr.split())
