"""Why a job, a cap or a node stands as it does: reasons in order, each with what would change it."""
