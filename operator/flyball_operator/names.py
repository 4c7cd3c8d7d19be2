"""Names that Flyball puts on Kubernetes objects; they are part of its API and never change within a version."""

from __future__ import annotations

LABEL_JOB_NAME = "flyball.dev/job-name"
LABEL_JOB_UID = "flyball.dev/job-uid"
LABEL_INCARNATION = "flyball.dev/incarnation"
ANNOTATION_ALLOCATION = "flyball.dev/allocation"
PLACEMENT_GATE = "flyball.dev/placement"
STARTUP_TAINT = "flyball.dev/unacknowledged"

GPU_RESOURCE = "nvidia.com/gpu"
LABEL_GPU_PRODUCT = "nvidia.com/gpu.product"
LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

FLYBALL_API_VERSION = "flyball.dev/v1alpha1"

LEADER_LEASE = "flyball-operator"
DEFAULT_NAMESPACE = "flyball-system"
