"""Tuning: configurations around the default, timed in turns, and a report."""
