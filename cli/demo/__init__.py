"""The demo: a small cluster, gangs that arrive, and two schedulers side by side."""
