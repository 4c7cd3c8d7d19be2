"""The agent towards the Kubernetes API: its GPUNode, the operator's Lease, the cluster's PowerBrakes."""
