"""Mutation testing of the pure modules: small faults are put in, one at a time, and the tests have to notice."""
