"""Seeded fault schedules over a training job on the local cluster, and the invariants of its history."""
