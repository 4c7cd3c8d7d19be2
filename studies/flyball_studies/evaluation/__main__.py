"""`python -m flyball_studies.evaluation`: everything of docs/evaluation.md, its figures and its pictures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flyball_simulator.experiments.comparison import curves
from flyball_simulator.experiments.matrix import Cell, Outcome, run_matrix
from flyball_simulator.experiments.results import write_whole
from flyball_simulator.experiments.worker_processes import Event, Failed, Finished
from flyball_simulator.settings import CapStep
from flyball_simulator.workloads.traces import TraceError

from flyball_studies.evaluation import carbon, days, gandiva, small, studies, tables
from flyball_studies.evaluation.lower_bound import Bounds
from flyball_studies.evaluation.page import fill
from flyball_studies.simulation.plots import MEAN_JCT, pareto_figure, png

STEPS = (CapStep(0.0, 0.5), CapStep(6 * 3600.0, 0.3), CapStep(18 * 3600.0, 0.4))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not kept from an earlier run, and write the page's figures and pictures."""
    options = _options(arguments)
    started = time.monotonic()
    try:
        Evaluation(options).run()
    except TraceError as error:
        print(f"evaluation: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("evaluation: interrupted; finished runs are kept, the same command goes on from there", file=sys.stderr)
        return 130
    print(f"evaluation: {options.page} written after {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


class Evaluation:
    """The studies, one after the other; runs are kept in a folder and found again."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._workloads = studies.Workloads(options.data, options.runs)
        self._ran = 0
        self._simulated_seconds = 0.0

    def run(self) -> None:
        """Every study, the main ones first; the page gets each one's figures as soon as they are there."""
        if self._options.only in (None, "lead"):
            self._lead()
        if self._options.only in (None, "gandiva"):
            self._gandiva()
        if self._options.only not in ("lead", "gandiva"):
            self._days(tuning=self._options.only == "tuning-days")
        if self._options.only is not None:
            return
        seeds, others = range(self._options.seeds), range(self._options.other_seeds)
        studied = range(self._options.study_seeds)
        loads = self._workloads
        cases = [(trace, load) for trace in studies.TRACES for load in studies.LOADS]
        pareto = {
            case: self._simulate(f"{case[0]}, load {case[1]}", studies.main_policies(loads, *case, seeds))
            for case in cases
        }
        bounds = {
            (trace, load, seed): loads.bounds(trace, seed, load, "main") for trace, load in cases for seed in seeds
        }
        jobs = {trace: len(loads.source(trace, 0).trace_jobs()) for trace in studies.TRACES}
        sizes = {(trace, seed, load): loads.gpus(trace, seed, load) for trace, load in cases for seed in seeds}
        self._write("clusters", tables.clusters(sizes, jobs))
        self._write("price-afs", tables.at_equal_energy(pareto, ["price", "afs+priced"], "afs", bounds))
        self._write("price-powerflow", tables.at_equal_energy(pareto, ["price"], "powerflow-paper", bounds))
        self._write("two-gpus", tables.two_gpus(small.two_gpus()))
        self._write("trends", tables.trends(small.trends(studied)))
        self._write("robustness", tables.robustness(self._simulate("robustness", studies.robustness(loads, studied))))
        hourly = carbon.hourly_carbon(Path(self._options.data or "../shared/data") / "carbon/CISO_NG_avgCI.csv.gz")
        schedule, signal = carbon.day_ahead_caps(hourly), carbon.price_signal(hourly)
        self._write(
            "caps", tables.caps(self._simulate("caps", studies.capped(loads, 0, STEPS, schedule, hourly, signal)))
        )
        self._write("u-shape", tables.u_shape(self._simulate("clocks", studies.u_shape(loads, 0))))
        for case in cases:
            pareto[case] += self._simulate(
                f"{case[0]}, load {case[1]}, others", studies.other_policies(loads, *case, others)
            )
            self._draw(case, pareto[case], nodes_off=True)
        self._write("claims-off", tables.powerflow_claims(pareto))
        on = {case: self._nodes_on(case, studied) for case in cases}
        bounds = {
            (trace, load, seed): loads.bounds(trace, seed, load, "nodes on", nodes_off=False)
            for trace, load in cases
            for seed in studied
        }
        self._write("price-on", tables.at_equal_energy(on, ["price", "afs+priced"], "afs", bounds))
        # As the paper has it: PowerFlow powers empty nodes off, and the others leave them on.
        off = {case: [one for one in found if one.cell.curve == "powerflow-paper"] for case, found in pareto.items()}
        rest = {case: [one for one in found if one.cell.curve != "powerflow-paper"] for case, found in on.items()}
        self._write("claims", tables.powerflow_claims({case: off[case] + rest[case] for case in cases}))

    def _lead(self) -> None:
        """What the lead before AFS is made of, and what is possible."""
        found: dict[tuple[str, float], list[Outcome]] = {}
        bounds: dict[tuple[str, float, int], Bounds] = {}
        others = [curve for curve in studies.LEAD_CURVES if curve != "afs"]
        for trace, load in studies.LEAD_CASES:
            cells = studies.lead(self._workloads, trace, load, 0)
            found[trace, load] = self._simulate(f"{trace}, load {load}, lead", cells)
            bounds[trace, load, 0] = self._workloads.bounds(trace, 0, load, "lead")
            fill(self._options.page, {"lead": tables.at_equal_energy(found, others, "afs", bounds)})

    def _gandiva(self) -> None:
        """Gandiva with and without migration, and PowerFlow against it."""
        found: dict[tuple[str, float], list[Outcome]] = {}
        for trace in studies.TRACES:
            for load in studies.LOADS:
                cells = gandiva.cells(self._workloads, trace, load, 0)
                found[trace, load] = self._simulate(f"{trace}, load {load}, Gandiva", cells)
                blocks = {"migration": gandiva.migration_table(found), "gandiva": gandiva.claims_table(found)}
                fill(self._options.page, blocks)

    def _days(self, *, tuning: bool) -> None:
        """Simulate several days of each trace on small clusters; those for tuning are printed, not put into the page."""
        chosen = days.Days(self._workloads, self._options.data, tuning=tuning)
        found: dict[tuple[str, float], list[Outcome]] = {}
        bounds: dict[tuple[str, float, int], Bounds] = {}
        for some in (days.CLAIM, days.CURVES):
            for load in reversed(studies.LOADS):  # the shorter runs first
                for trace in days.TRACES:
                    name = f"days of {trace}, load {load}, {len(some)} curves"
                    found[trace, load] = self._simulate(name, chosen.cells(trace, load, some))
                    if some == days.CLAIM:
                        bounds.update(chosen.bounds(trace, load))
                    if not tuning:  # what there is stands in the page, whenever this is interrupted
                        blocks = {"days-clusters": chosen.clusters(), "days": days.days_table(found, bounds)}
                        fill(self._options.page, blocks)
        if tuning:
            print(chosen.clusters(), days.days_table(found, bounds), sep="\n\n")

    def _nodes_on(self, case: tuple[str, float], seeds: Sequence[int]) -> list[Outcome]:
        """Everybody with all nodes left on."""
        cells = studies.main_policies(self._workloads, *case, seeds, nodes_off=False)
        cells += studies.other_policies(self._workloads, *case, seeds, nodes_off=False)
        outcomes = self._simulate(f"{case[0]}, load {case[1]}, nodes on", cells)
        self._draw(case, outcomes, nodes_off=False)
        return outcomes

    def _draw(self, case: tuple[str, float], outcomes: Sequence[Outcome], *, nodes_off: bool) -> None:
        trace, load = case
        alike, seeds = studies.of_common_seeds(outcomes)
        nodes = "off" if nodes_off else "left on"
        heading = f"{trace}, load {load}, empty nodes {nodes}, {seeds} seed{'' if seeds == 1 else 's'}"
        figure = pareto_figure(curves(alike), MEAN_JCT, heading)
        name = f"evaluation-{trace}-{round(load * 10):02d}{'' if nodes_off else '-on'}.png"
        write_whole(self._options.pictures / name, png(figure))

    def _write(self, block: str, text: str) -> None:
        run = (
            f"{self._ran} simulations, {self._simulated_seconds / 60:.0f} minutes of one core; {self._options.seeds} seeds "
            f"for {', '.join(studies.MAIN)}, {self._options.other_seeds} for the other policies; "
            f"{self._options.study_seeds} for the studies and with nodes left on."
        )
        for name in fill(self._options.page, {block: text, "run": run}):
            print(f"evaluation: {self._options.page} has no place for {name}", file=sys.stderr)

    def _simulate(self, name: str, cells: Sequence[Cell]) -> list[Outcome]:
        outcomes = run_matrix(
            cells, self._options.runs, processes=self._options.processes, listen=_progress_of(name, len(cells), cells)
        )
        self._ran += len(cells)
        self._simulated_seconds += sum(each.result["wall_seconds"] for each in outcomes if each.result is not None)
        return outcomes


def _progress_of(name: str, count: int, cells: Sequence[Cell]) -> Callable[[Event], None]:
    """Progress on stderr: one line that is written over, and a line of its own for whatever fails."""
    done = 0

    def print_event(event: Event) -> None:
        nonlocal done
        if isinstance(event, Failed):
            print(f"\n{name}: {cells[event.task]} failed: {event.error}", file=sys.stderr)
        if isinstance(event, (Finished, Failed)):
            done += 1
            print(f"\r{name}: {done} of {count}   ", end="\n" if done == count else "", file=sys.stderr, flush=True)

    return print_event


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m flyball_studies.evaluation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help=f"seeds of {', '.join(studies.MAIN)} (default: 5)")
    parser.add_argument("--other-seeds", type=int, default=3, help="seeds of the other policies (default: 3)")
    parser.add_argument(
        "--study-seeds", type=int, default=1, help="seeds of the studies, and with nodes left on (default: 1)"
    )
    parser.add_argument(
        "--only",
        choices=("lead", "gandiva", "days", "tuning-days"),
        help="only what the lead before AFS is made of (an hour of one core), only Gandiva (ten minutes), or only the "
        "days of small clusters (half an hour), or of these the ones to tune on, which are printed and not written into "
        "the page",
    )
    parser.add_argument("--data", default=None, help="folder of the public traces (default: ../shared/data)")
    parser.add_argument("--runs", type=Path, default=Path("out/evaluation"), help="where finished runs are kept")
    parser.add_argument("--pictures", type=Path, default=Path("docs/images"), help="where the pictures go")
    parser.add_argument(
        "--page", type=Path, default=Path("docs/evaluation.md"), help="the page whose figures are filled in"
    )
    parser.add_argument("--processes", type=int, default=2, help="simulations at a time (default: 2)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
