"""A throwaway cluster on this machine, and the demo on one."""
