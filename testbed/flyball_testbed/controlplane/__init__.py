"""The control plane as plain processes: kube-apiserver, etcd, controller manager, scheduler, kwok; and simulated nodes."""
