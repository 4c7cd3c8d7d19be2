"""Access to the Kubernetes API that operator, agent and devcluster share: a JSON session and an informer."""
