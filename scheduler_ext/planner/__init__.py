"""The planner of the extender: one plan per waiting gang, and what to write ahead."""
