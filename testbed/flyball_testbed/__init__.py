"""A throwaway cluster anywhere: the real control plane as plain processes, with simulated GPU nodes."""
