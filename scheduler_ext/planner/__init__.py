"""The planner of the extender: one plan per waiting gang, and the nominations that are written ahead."""
