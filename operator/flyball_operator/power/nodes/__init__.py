"""What each GPU node is, what it may draw at worst, and what its agent has said and still owes."""
