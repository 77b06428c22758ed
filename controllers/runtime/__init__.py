"""The controllers' edge: watches, a queue of jobs to look at, and writes."""
