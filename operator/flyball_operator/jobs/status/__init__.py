"""What a job's status says, and when it is written."""

from flyball_operator.jobs.status.contents import energy_status, job_status, significant_fields
from flyball_operator.jobs.status.facts import JobFacts
from flyball_operator.jobs.status.reasons import REASONS

__all__ = ["REASONS", "JobFacts", "energy_status", "job_status", "significant_fields"]
