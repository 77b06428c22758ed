"""Starts, watches and stops training processes, and all their descendants. Callers use worker_processes.py.

An agent has up to two parents of training processes, each a single-threaded process (forkserver/). The warm parent has
imported torch and forks; the plain parent executes programs. Parents reap and kill the descendants of their processes,
and end soon after their agent.
"""
