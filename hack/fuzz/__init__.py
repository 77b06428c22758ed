"""Fuzzers: what strangers and tenants can send, changed at random, through the readers that meet it first."""
