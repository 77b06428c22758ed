"""Seeded fault schedules over a training job on the yard, and the invariants that its history is checked against."""
