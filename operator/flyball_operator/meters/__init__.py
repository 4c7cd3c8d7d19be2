"""Reads the caps' meters, beside the loop: what is made of them is decided in `power/caps/meter.py`."""
