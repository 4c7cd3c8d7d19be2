"""Access to the Kubernetes API that operator, agent and testbed share: sessions, and local copies of resources."""
