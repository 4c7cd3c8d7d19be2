"""Have a planner service plan a pipeline: python ask_the_planner.py stages.csv MICROBATCHES BLOCKING_WATTS

Writes plan.json, for `job.pipeline("plan.json", ...)` or a ConfigMap. Needs Python's standard library alone; the service
is `flyball planner serve`, at $FLYBALL_PLANNER, with the token in $FLYBALL_PLANNER_TOKEN where it has one.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

profile, microbatches, watts = Path(sys.argv[1]).read_text(), int(sys.argv[2]), float(sys.argv[3])
asked = json.dumps({"profile": profile, "microbatches": microbatches, "blockingWatts": watts}).encode()
address = os.environ.get("FLYBALL_PLANNER", "http://127.0.0.1:8095")
request = urllib.request.Request(f"{address}/v1/frontiers?wait=60", asked)  # noqa: S310
request.add_header("Authorization", f"Bearer {os.environ.get('FLYBALL_PLANNER_TOKEN', '')}")
while (answer := urllib.request.urlopen(request)).status == 202:  # noqa: S310
    pass  # it is still being planned: ask again, which waits another minute
Path("plan.json").write_bytes(answer.read())
