"""Starts, watches and stops training processes, and leaves nothing behind. Callers use worker_processes.py.

An agent has up to two parents for them, each a single-threaded process (forkserver/). A warm one has imported torch and
forks; a plain one executes programs. Parents reap and kill what their processes leave, and end soon after their agent.
"""
