"""What the adviser intends: one plan per waiting gang, and what to write ahead."""
