"""Plan a pipeline from Python: its frontier, the clocks for a deadline, a straggler, and the table kept as JSON.

python examples/python/plan_a_pipeline.py
"""

from pathlib import Path

from flyball_frontiers import (
    PipelineProfile,
    PlanCodec,
    Schedule,
    StragglerTable,
    frontier_from_json,
    pipeline_frontier,
    pipeline_graph,
)

STAGES = Path(__file__).parents[1] / "profiles" / "gpt3-a100-unbalanced.csv"

# Three lines: what is possible, and the clocks for an iteration a tenth slower than the fastest.
frontier = pipeline_frontier(STAGES, microbatches=16, blocking_power_watts=83.64, points=50)
point = frontier.at(1.1 * frontier.t_min)
print(f"{point.realised_energy_joules:.0f} J in {point.realised_time_seconds:.3f} s:", point.plan.clocks_megahertz[:8])

# Another pipeline is slow by a fifth: looked up, never solved again.
table = StragglerTable(frontier)
slower = table.set_straggler("rack 7", delay=0.0, degree=1.2).point
print(f"behind a straggler: {slower.realised_energy_joules:.0f} J of computing in {slower.realised_time_seconds:.3f} s")

# The frontier with all its plans, kept and read back; plans are of a graph, so the codec needs it.
graph = pipeline_graph(PipelineProfile.from_csv(STAGES.read_text()), Schedule.ONE_F_ONE_B, 16)
codec = PlanCodec(graph)
text = frontier.dumps(codec.to_json)
again = frontier_from_json(text, codec.from_json)
print(f"kept in {len(text) / 1000:.0f} kB, {len(again)} points, the same: {again == frontier}")
