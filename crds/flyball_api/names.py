"""The labels, annotations, taints and other names on Kubernetes objects that Flyball sets or reads: part of its API."""

from __future__ import annotations

GROUP = "flyball.dev"
VERSION = "v1alpha1"
FLYBALL_API_VERSION = f"{GROUP}/{VERSION}"

LABEL_JOB_NAME = "flyball.dev/job-name"
LABEL_JOB_UID = "flyball.dev/job-uid"
LABEL_INCARNATION = "flyball.dev/incarnation"
ANNOTATION_ALLOCATION = "flyball.dev/allocation"
ANNOTATION_FORMER_LABELS = "flyball.dev/former-labels"
ANNOTATION_CONFIRM_WATTS = "flyball.dev/confirm-watts"
ANNOTATION_RELEASE = "flyball.dev/release"
ANNOTATION_POWER_PERMILLE = "flyball.dev/power-permille"
ANNOTATION_PIPELINE_POINT = "flyball.dev/pipeline-point"
ANNOTATION_STRAGGLER = "flyball.dev/straggler"
LABEL_ADMISSION = "flyball.dev/admission"
ADMISSION_BY_POWER = "by-power"
ANNOTATION_WATTS_PER_GPU = "flyball.dev/watts-per-gpu"
LABEL_MODE = "flyball.dev/mode"
MODE_OBSERVE = "observe"
LABEL_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
HOLD_FINALIZER = "flyball.dev/hold"
PLACEMENT_GATE = "flyball.dev/placement"
STARTUP_TAINT = "flyball.dev/unacknowledged"
MANAGED_BY_FLYBALL = "flyball.dev/operator"
REPORTING_CONTROLLER = "flyball.dev/operator"  # of the operator's Events

GPU_RESOURCE = "nvidia.com/gpu"
SOCKET_RESOURCE = "flyball.dev/socket"
SOCKET_VOLUME = "flyball-socket"
LABEL_GPU_PRODUCT = "nvidia.com/gpu.product"
LABEL_GPU_PRESENT = "nvidia.com/gpu.present"
LABEL_GPU_COUNT = "nvidia.com/gpu.count"
LABEL_GPU_REPLICAS = "nvidia.com/gpu.replicas"
LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
RENDEZVOUS_PORT = 29400

LEADER_LEASE = "flyball-operator"
DEFAULT_NAMESPACE = "flyball-system"
