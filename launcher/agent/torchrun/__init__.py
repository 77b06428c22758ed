"""Supports `torchrun --rdzv-backend=turnout`: Turnout's rendezvous under torch's own agent.

torch's agent starts and stops the processes; Turnout decides the rounds, worlds and ranks. Limits of torch's agent
remain: it counts restarts itself, its processes import everything again, and it handles SIGTERM. Source:
docs/facts/launcher.md 1
"""
