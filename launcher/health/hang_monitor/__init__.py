"""Watches training processes: their counters, their stack traces, and the monitor that finds a hang."""
