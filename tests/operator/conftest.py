"""Lets the operator's tests share `operator_objects`, the API objects that they are told with."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
