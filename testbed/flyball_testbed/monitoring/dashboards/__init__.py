"""The dashboards: one list of panels, from which Grafana's and vmui's files and the pictures of the documents are made.

No query needs a certain scrape configuration: of the labels that one adds, only `instance` is used, which each has.
The operators' series are taken by `max by`: after a change of leaders two of them may have a cap's series for a moment.
Where nothing is known a panel is empty, and never zero.
"""

from __future__ import annotations

from flyball_testbed.monitoring.dashboards.agents_and_operator import AGENTS_AND_OPERATOR
from flyball_testbed.monitoring.dashboards.cluster_power import CLUSTER_POWER
from flyball_testbed.monitoring.dashboards.jobs import JOBS
from flyball_testbed.monitoring.dashboards.savings import SAVINGS

DASHBOARDS = (CLUSTER_POWER, JOBS, SAVINGS, AGENTS_AND_OPERATOR)
