"""The operator's and the agent's container images: built here from Debian's packages and this checkout, and unpacked."""
