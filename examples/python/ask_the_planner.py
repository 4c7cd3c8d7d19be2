"""Have a planner service plan a pipeline: python ask_the_planner.py stages.csv MICROBATCHES BLOCKING_WATTS

Writes plan.json, for `job.pipeline("plan.json", ...)` or a ConfigMap. Needs Flyball's client (`pip install ./client`) and
nothing else; the service is `flyball planner serve`, at $FLYBALL_PLANNER, with the token in $FLYBALL_PLANNER_TOKEN where it
has one.
"""

import json
import sys
from pathlib import Path

from flyball.planner import ask_planner

try:
    profile, microbatches, watts = sys.argv[1:] or sys.exit(__doc__.splitlines()[0])
    plan = ask_planner(Path(profile).read_text(), int(microbatches), float(watts))
except (OSError, ValueError) as error:
    sys.exit(f"{error} (python ask_the_planner.py stages.csv MICROBATCHES BLOCKING_WATTS)")
Path("plan.json").write_text(json.dumps(plan))
