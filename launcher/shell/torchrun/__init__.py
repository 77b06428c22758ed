"""`torchrun --rdzv-backend=turnout`: our rendezvous under torch's own agent, for who adopts half of it.

torch's agent starts and stops the processes; we say when, in which world and with which ranks. What its agent cannot
do stays undone: restarts are its own count, its processes are imported afresh, and SIGTERM is its own affair.
Source: docs/facts/launcher.md 1
"""
