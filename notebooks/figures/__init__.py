"""What the notebooks draw: functions that return data and functions that draw it, by subject."""
