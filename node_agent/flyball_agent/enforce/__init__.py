"""Power limits and clocks of one node's GPUs, held to the operator's grant: the decisions, their execution, the journal."""
