"""Measurements and figures: functions that return data, and functions that show it."""
