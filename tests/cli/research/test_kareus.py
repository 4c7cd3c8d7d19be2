"""`flyball kareus` as a user meets it: what it prints, what it writes, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import flyball

PNG = b"\x89PNG"
COLUMNS = "overlap_start,overlap_end,comm_sm_number,comm_block_size,0:time (s),0:total energy (J)"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with two clocks of a small, smooth table: 2 x 10 SMs x 4 launch windows."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for clock in (1200, 1410):
        lines = [COLUMNS]
        for sms in range(1, 11):
            for first, last in ((-1, -1), (0, 3), (1, 3), (2, 3)):
                seconds = 0.002 * 1410 / clock + 0.004 / sms + 0.0001 * sms + (0.001 if first < 0 else 0.0002 * first)
                joules = seconds * 120 + 0.6 * (clock / 1410) ** 3 + 0.01 * sms
                lines.append(f"{first},{last},{sms},512,{seconds},{joules}")
        (folder / f"small_{clock}.csv").write_text("\n".join(lines))
    return folder


def run(*arguments: str) -> tuple[int, str]:
    result = flyball("kareus", *arguments)
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.slow
def test_a_replay_writes_its_report_and_pictures(tables: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    named = ["--table", "small_1200.csv=1200", "--table", "small_1410.csv=1410"]
    sizes = ["--initial", "10", "--batches", "1", "--batch-size", "16", "--seeds", "1", "--output", str(output)]
    code, printed = run("replay", str(tables), *named, *sizes)
    assert code == 0, printed
    assert "80 schedules" in printed
    report = json.loads((output / "kareus-table.json").read_text())
    assert report["schedules"] == 80
    assert set(report["methods"]) == {"Multi-pass (Kareus)", "Least energy only", "Least time only", "Random"}
    ours = report["methods"]["Multi-pass (Kareus)"]
    assert ours["measured"] == [26]
    assert all(0.9 <= share <= 1.0 for share in ours["hypervolume_share_paper_reference"])
    assert sum(ours["frontier_found_by"].values()) >= 2
    for picture in ("kareus-hypervolume.png", "kareus-frontier.png"):
        assert (output / picture).read_bytes().startswith(PNG)


@pytest.mark.slow
def test_another_seed_draws_otherwise_and_the_same_one_the_same(tables: Path, tmp_path: Path) -> None:
    def found(seed: int, count: int) -> list[float]:
        output = tmp_path / f"{seed}-{count}"
        named = ["--table", "small_1200.csv=1200", "--table", "small_1410.csv=1410"]
        sizes = ["--initial", "10", "--batches", "1", "--batch-size", "16", "--seed", str(seed), "--seeds", str(count)]
        code, printed = run("replay", str(tables), *named, *sizes, "--output", str(output))
        assert code == 0, printed
        report = json.loads((output / "kareus-table.json").read_text())
        shares: list[float] = report["methods"]["Random"]["hypervolume_share_near_reference"]
        assert len(shares) == count
        return shares

    assert found(7, 1) == found(6, 2)[1:]
    assert found(7, 1) != found(6, 1)


@pytest.mark.slow
def test_a_pipeline_is_compared_and_drawn(tmp_path: Path) -> None:
    sizes = ["--stages", "2", "--blocks", "2", "--microbatches", "2", "--points", "8", "--effort", "0.2"]
    code, printed = run("pipeline", *sizes, "--output", str(tmp_path))
    assert code == 0, printed
    assert "Joint, enumerated" in printed
    report = json.loads((tmp_path / "kareus-pipeline.json").read_text())
    assert report["joint"]["iso_time_energy_saved"] > 0
    assert (tmp_path / "kareus-pipeline.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--table", "small_1200.csv"], "is not FILE=MHZ"),
        (["--table", "nowhere.csv=1200"], "has no nowhere.csv"),
        ([], "has no attention_tp2_bs4_seq4096_default_clock.csv"),
        (["--table", "small_1200.csv=1200", "--initial", "20"], "more than a third of the table's (13)"),
        (
            ["--table", "small_1200.csv=1200", "--initial", "5", "--batches", "1", "--batch-size", "4",
             "--static-power", "9999"],
            "static power",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_named(tables: Path, arguments: list[str], says: str) -> None:
    code, printed = run("replay", str(tables), *arguments)
    assert code == 2
    assert says in printed or says.replace(" ", "") in printed.replace(" ", "")


def test_numbers_that_are_none_are_refused_with_their_line(tables: Path) -> None:
    path = tables / "small_1200.csv"
    lines = path.read_text().splitlines()
    for wrong in ("nan", "inf", "-1", "0"):
        path.write_text("\n".join([*lines[:4], ",".join([*lines[4].split(",")[:-1], wrong]), *lines[5:]]))
        code, printed = run("replay", str(tables), "--table", "small_1200.csv=1200")
        assert code == 2
        assert "line 5: seconds" in printed
        assert "wanted finite numbers above 0" in printed


def test_a_stage_without_blocks_is_refused() -> None:
    code, printed = run("pipeline", "--blocks", "1")
    assert code == 2
    assert "--blocks" in printed


def test_an_output_that_is_a_file_is_refused_before_the_search(tables: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for arguments in (("replay", str(tables), "--table", "none.csv=1"), ("pipeline",)):
        code, printed = run(*arguments, "--output", str(tmp_path / "taken"))
        assert code == 2
        assert "taken is a file; wanted a folder" in printed
