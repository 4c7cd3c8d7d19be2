"""Have a planner service plan a pipeline: python ask_the_planner.py stages.csv MICROBATCHES BLOCKING_WATTS

Writes plan.json, for `job.pipeline("plan.json", ...)` or a ConfigMap. Needs Python's standard library alone; the service
is `flyball planner serve`, at $FLYBALL_PLANNER, with the token in $FLYBALL_PLANNER_TOKEN where it has one.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

if len(sys.argv) != 4:
    sys.exit(f"{len(sys.argv) - 1} arguments, wanted three: ask_the_planner.py stages.csv MICROBATCHES BLOCKING_WATTS")
try:
    profile, microbatches, watts = Path(sys.argv[1]).read_text(), int(sys.argv[2]), float(sys.argv[3])
except (OSError, ValueError) as error:
    sys.exit(f"{error}; wanted: ask_the_planner.py stages.csv MICROBATCHES BLOCKING_WATTS")
asked = json.dumps({"profile": profile, "microbatches": microbatches, "blockingWatts": watts}).encode()
address = os.environ.get("FLYBALL_PLANNER", "http://127.0.0.1:8095")
request = urllib.request.Request(f"{address}/v1/frontiers?wait=60", asked)  # noqa: S310
request.add_header("Authorization", f"Bearer {os.environ.get('FLYBALL_PLANNER_TOKEN', '')}")
try:
    while (answer := urllib.request.urlopen(request)).status == 202:  # noqa: S310
        pass  # it is still being planned: ask again, which waits another minute
except urllib.error.HTTPError as error:  # what was wrong with the request is in the body, as {"reason": ...}
    sys.exit(f"{address} refused with {error.code} {error.reason}: {error.read().decode(errors='replace')}")
except OSError as error:
    sys.exit(f"{address} does not answer ({error}); $FLYBALL_PLANNER says where the service is")
Path("plan.json").write_bytes(answer.read())
