"""Time-energy frontiers of pipelines: Perseus and, as a baseline, EnvPipe.

`PipelineProfile` is what was measured, `pipeline_graph` (or `graph_from_json`) what has to run, `PerseusPlanner` plans
it, `StragglerTable` looks plans up, `envpipe` is the baseline.
"""

from flyball_frontiers.pipeline.codec import PlanCodec
from flyball_frontiers.pipeline.envpipe import EnvPipeResult, Reconfiguration, envpipe
from flyball_frontiers.pipeline.graph import ComputationGraph, GraphError, Operation, graph_from_json, graph_to_json
from flyball_frontiers.pipeline.group_layout import Group, groups_from_json
from flyball_frontiers.pipeline.groups import GroupsDeployment, SynchronisedGroups, plan_groups
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.planning import pipeline_frontier
from flyball_frontiers.pipeline.profile import OperatingPoint, PipelineProfile, ProfileError
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.size import PlanSize, SizeError, check_size, plan_size
from flyball_frontiers.pipeline.straggler import Deployment, StragglerTable
from flyball_frontiers.pipeline.timeline import written_out

__all__ = [
    "ComputationGraph",
    "Deployment",
    "EnvPipeResult",
    "GraphError",
    "Group",
    "GroupsDeployment",
    "OperatingPoint",
    "Operation",
    "PerseusPlanner",
    "PipelinePlan",
    "PipelineProfile",
    "PlanCodec",
    "PlanSize",
    "ProfileError",
    "Reconfiguration",
    "Schedule",
    "SizeError",
    "StragglerTable",
    "SynchronisedGroups",
    "check_size",
    "envpipe",
    "graph_from_json",
    "graph_to_json",
    "groups_from_json",
    "pipeline_frontier",
    "pipeline_graph",
    "plan_groups",
    "plan_size",
    "written_out",
]
