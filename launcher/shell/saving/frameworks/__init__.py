"""Trainers that others wrote: what they keep in files is kept in memory and storage of ours."""
