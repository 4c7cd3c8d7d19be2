"""Runs of schedules that add up: what is in the file is not run again, on the same code; a kill costs the last part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from flyball_operator.power.caps.state import CapState

from benchmarks import schedules
from benchmarks.schedule_records import ROOT, Part, Records, code_that_runs, runs_of

CODE = "0123456789ab"


def part(*seeds: int, code: str = CODE, violations: tuple[int, ...] = ()) -> Part:
    told = [(seed, "untrue") for seed in violations]
    return Part(code, "abc", "all", runs_of(seeds), 7, 0.5, {"reboot": 2}, {"reboot": [0.25]}, told)


def test_what_was_judged_of_this_code_is_known_again(tmp_path: Path) -> None:
    path = tmp_path / "record"
    Records(path).add(part(0, 1, 2))
    again = Records(path)
    again.add(part(7, 8, 12))
    again.add(part(3, code="another"))
    assert Records(path).judged(CODE, "all") == {0, 1, 2, 7, 8, 12}
    assert Records(path).judged(CODE, "some") == set()
    assert Records(path).of(CODE, "all") == [part(0, 1, 2), part(7, 8, 12)]


def test_each_code_is_counted_by_itself(tmp_path: Path) -> None:
    records = Records(tmp_path / "record")
    for each in (part(0, 1), part(5, code="later", violations=(5,)), part(2, 3, 4)):
        records.add(each)
    assert records.by_code() == {CODE: ("abc", 5, 0), "later": ("abc", 1, 1)}


def test_a_line_that_was_torn_by_a_kill_is_left_out_and_the_next_stands_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "record"
    Records(path).add(part(0, 1))
    whole = msgspec.json.encode(part(2, 3))
    path.write_bytes(path.read_bytes() + whole[:40])
    records = Records(path)
    assert records.judged(CODE, "all") == {0, 1}
    records.add(part(4))
    assert Records(path).judged(CODE, "all") == {0, 1, 4}


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    for notes in ("bread\nmilk\n", "bread"):
        path = tmp_path / "notes"
        path.write_text(notes)
        with pytest.raises(ValueError, match="not a part"):
            Records(path)
        assert path.read_text() == notes


def test_runs_of_seeds_are_written_short() -> None:
    assert runs_of([4, 5, 6, 9, 11, 12]) == ((4, 3), (9, 1), (11, 2))


def test_the_code_is_all_of_ours_that_is_loaded() -> None:
    here = code_that_runs()
    assert here == code_that_runs()
    loaded = "import sys; sys.path.insert(0, sys.argv[1]); import {}; from benchmarks.schedule_records import *"
    codes = {
        subprocess.run(
            [sys.executable, "-c", f"{loaded.format(module)}; print(code_that_runs())", str(ROOT)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for module in ("flyball_api.values.units", "flyball_kube.backoff")
    }
    assert len(codes) == 2


@pytest.mark.slow
def test_a_run_goes_on_where_the_one_before_it_ended(tmp_path: Path) -> None:
    def judged(count: int, *options: str) -> str:
        command = [sys.executable, str(ROOT / "benchmarks" / "schedules.py"), "--jobs", "1", "--count", str(count)]
        command += ["--record", str(tmp_path / "record"), *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    first, second = judged(2), judged(3)
    assert first.startswith("2 schedules in ")
    assert "2 of these schedules have been judged on this code" in second
    assert "1 schedules in " in second
    assert "3 schedules of code " in second


@pytest.mark.slow
def test_a_claim_that_is_not_true_is_shown_with_the_fewest_faults_and_stays_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CapState, "enforced", property(lambda state: True))
    record = tmp_path / "record"
    command = ["schedules.py", "--jobs", "1", "--count", "20", "--only", "wishes", "--record", str(record)]
    monkeypatch.setattr(sys, "argv", command)
    assert schedules.main() == 1
    shown = capsys.readouterr().out
    assert "NOT TRUE, seed " in shown
    assert "the fewest faults of seed " in shown
    assert "VIOLATION " in shown
    ((_, _, violations),) = Records(record).by_code().values()
    assert violations > 0
    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", [*command[:4], "1", *command[5:]])
    assert schedules.main() == 1, "what was found once is not forgotten by a run that goes on"
