"""The excerpts in tests/data, made from the public measurements that lie beside the repository.

    python -m tests.support.excerpts ../shared/data

Each keeps the place and the columns of its source, so that what reads the source reads the excerpt. The origin and the
licence of each, and what was left out, stand in tests/data/README.md.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flyball_simulator.workloads.trace_formats import timestamp
from flyball_simulator.workloads.trace_library import DAY_SECONDS, PHILLY_START
from flyball_studies.zeus.trace import ZEUS_WORKLOADS

EXCERPTS = Path(__file__).parents[1] / "data"
WHOLE = Path(__file__).parents[3] / "shared" / "data"

Row = dict[str, str]

EXCERPT_WORKLOADS = tuple(name for name in ZEUS_WORKLOADS if name.title in ("BERT (SA)", "ShuffleNet V2", "NeuMF"))
ITP_HOUR_SECONDS = range(777_600, 781_200)
"""The hour that examples/traces has; its jobs are all kept."""
GPT3_STAGES = ("0", "7")
"""Stages 0 to 6 are one measurement."""
TRACE_STEP, YEAR_STEP = 25, 40
EMULATED_MICROBATCHES = ("12", "24")


def rounded(row: Row, columns: Iterable[str], digits: int) -> Row:
    return {**row, **{name: f"{float(row[name]):.{digits}g}" for name in columns if row[name]}}


def as_csv(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def thinned(rows: Sequence[Row], step: int) -> list[Row]:
    """Every `step`-th row, and the last."""
    return [row for index, row in enumerate(rows) if index % step == 0 or index == len(rows) - 1]


# --- one function a kind of source -------------------------------------------------------------------------------------


def elasticflow(rows: list[Row]) -> str:
    return as_csv([rounded(row, (name for name in row if name != "global_batch_size"), 5) for row in rows])


def stage_profile(rows: list[Row]) -> str:
    return as_csv([rounded(row, ("time", "energy"), 7) for row in rows if row["stage"] in GPT3_STAGES])


def golden_frontier(rows: list[Row]) -> str:
    return as_csv([rounded(row, ("time", "energy"), 9) for row in thinned(rows, len(rows) // 80)])


def emulation(rows: list[Row]) -> str:
    return as_csv([row for row in rows if row["num_microbatches"] in EMULATED_MICROBATCHES])


def kareus(rows: list[Row]) -> str:
    """Means of the repetitions, without the energies of the single ranks."""
    settings = ("overlap_start", "overlap_end", "comm_sm_number", "comm_block_size")
    measured = (":time (s)", ":total energy (J)")

    def mean(row: Row, suffix: str) -> str:
        return f"{statistics.fmean(float(row[name]) for name in row if name.endswith(suffix)):.5g}"

    return as_csv([{name: row[name] for name in settings} | {f"0{s}": mean(row, s) for s in measured} for row in rows])


def _of_excerpt_workload(row: Row) -> bool:
    mine = (row["dataset"], row["network"], row["optimizer"])
    return any(mine == (name.dataset, name.network, name.optimizer) for name in EXCERPT_WORKLOADS)


def zeus_power(rows: list[Row]) -> str:
    return as_csv([rounded(row, ("time_per_epoch", "average_power"), 5) for row in rows if _of_excerpt_workload(row)])


def zeus_training(rows: list[Row]) -> str:
    targets = {(name.dataset, name.network): name.target_metric for name in EXCERPT_WORKLOADS}
    kept = [row for row in rows if _of_excerpt_workload(row)]
    return as_csv([row for row in kept if row["target_metric"] == targets[row["dataset"], row["network"]]])


def profile_windows(rows: list[Row]) -> str:
    return as_csv([rounded(row, [name for name in row if name != "window_name"], 7) for row in rows[::2]])


def itp(rows: list[Row]) -> str:
    """Every 25th job, and all jobs of the hour that is shipped; of an id what is needed to tell the hour's jobs."""
    hour = [row for row in rows if int(row["submission_time"]) in ITP_HOUR_SECONDS]
    kept = {id(row) for row in (*thinned(rows, TRACE_STEP), *hour)}
    return as_csv([row for row in rows if id(row) in kept])


def philly(rows: list[Row]) -> str:
    """Every 25th job of the day that is replayed and of the days beside it."""
    start = timestamp(PHILLY_START)
    days = [row for row in rows if -DAY_SECONDS <= timestamp(row["timestamp"]) - start < 2 * DAY_SECONDS]
    return as_csv(thinned(days, TRACE_STEP))


def pai(rows: list[Row]) -> str:
    return as_csv(thinned(rows, YEAR_STEP))


def fits(text: str) -> str:
    """Ours as it is, one line a model."""
    return json.dumps(json.loads(text)) + "\n"


MAKERS: dict[str, Callable[[list[Row]], str]] = {
    **{
        f"elasticflow/{name}.csv": elasticflow
        for name in ("bert", "deepspeech2", "gpt2", "inception3", "resnet50", "resnet50_cifar10", "vgg16")
    },
    "perseus-sosp24/stage_profile/gpt3-175b+a100_sxm_bf16.csv": stage_profile,
    "perseus-sosp24/stage_profile/gpt3-175b+a40_bf16.csv": stage_profile,
    "perseus-sosp24/golden_frontier/a100_sxm/gpt3-175b_bf16_mb12.csv": golden_frontier,
    "perseus-sosp24/golden_frontier/a100_sxm/gpt3-175b_bf16_mb24.csv": golden_frontier,
    "perseus-sosp24/golden_frontier/a40/gpt3-175b_bf16_mb12.csv": golden_frontier,
    "perseus-sosp24/envpipe_emulation_gpt3.csv": emulation,
    "kareus/attention_tp2_bs4_seq4096_default_clock.csv": kareus,
    "kareus/attention_tp2_bs4_seq4096_1200mhz.csv": kareus,
    "zeus-nsdi23/summary_power_v100.csv": zeus_power,
    "zeus-nsdi23/summary_power_p100.csv": zeus_power,
    "zeus-nsdi23/summary_train.csv": zeus_training,
    "zeus-nsdi23/profile_windows/V100+resnet50+gpu0.csv": profile_windows,
    "zeus-nsdi23/profile_windows/V100+resnet50+gpu0,1.csv": profile_windows,
    "traces/itp/cluster04.csv.gz": itp,
    "traces/philly/philly.csv.gz": philly,
    "traces/pai/pai-100k.csv.gz": pai,
}
FITS = "elasticflow/throughput_fits.json"


def read_text(path: Path) -> str:
    """The text of a file, unpacked where its name ends in .gz."""
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")


def excerpt(whole: Path, name: str) -> str:
    """The text of the excerpt of one file among the whole data."""
    text = read_text(whole / name)
    return fits(text) if name == FITS else MAKERS[name](list(csv.DictReader(io.StringIO(text))))


def main(whole: Path) -> None:
    """Write every excerpt."""
    for name in (*MAKERS, FITS):
        path = EXCERPTS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = excerpt(whole, name).encode()
        # Without a time and a file name in it, so that the same rows give the same bytes.
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
