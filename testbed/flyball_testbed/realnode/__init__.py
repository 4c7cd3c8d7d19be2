"""Nodes with a real kubelet and containerd, each a machine of its own in namespaces, beside the control plane."""
