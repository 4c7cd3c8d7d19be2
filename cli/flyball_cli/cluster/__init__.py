"""What people ask a cluster or do to it, as kubectl does: what is drawn and why, emergencies, releases, checks."""
