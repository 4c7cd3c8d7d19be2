"""Flyball's API: the only code that knows the JSON of Flyball's kinds.

Structs for what is read and written of each kind and of the Kubernetes objects that Flyball makes and reads, the names that
it puts on these, units, times, conditions and label selectors. The CRDs beside this package (`crds/*.yaml`) are
the source; `tests/crds` holds the structs against them. Fields that this version does not know are passed over, so that
old and new components can run together; nobody may therefore write back a whole object: write patches of what changed.
"""
