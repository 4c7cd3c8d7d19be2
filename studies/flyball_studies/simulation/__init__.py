"""Figures and reports of simulations."""
