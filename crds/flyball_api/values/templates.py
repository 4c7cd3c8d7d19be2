"""Bounds on a job's pod template: one that is nested deeper or is larger than any real pod's is refused."""

from __future__ import annotations

from typing import Any

from flyball_api.reading import is_deeper, is_larger

# A pod's own fields are a dozen deep. The API server takes thousands of levels where it does not look into the template.
DEEPEST_TEMPLATE = 64
# A thousand environment variables are three thousand. An empty list is three bytes for who writes it and twenty times as
# many for who keeps it: what one object may have would be as much to an operator as hundreds of jobs.
MOST_TEMPLATE_PARTS = 10_000


def problem_of_template(template: Any) -> str:
    """Why a pod template is refused; empty where it is not."""
    if is_larger(template, MOST_TEMPLATE_PARTS):
        return f"spec.template has more than {MOST_TEMPLATE_PARTS:,} fields and entries, which no pod's template has"
    if is_deeper(template, DEEPEST_TEMPLATE):
        return f"spec.template is nested more than {DEEPEST_TEMPLATE} levels deep, which no pod's template is"
    return ""
