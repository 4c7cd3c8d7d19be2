"""Figures of pipelines' frontiers and schedules."""
