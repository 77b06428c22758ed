"""The controllers of a yard: what each kind of job wants written, as functions of what is there."""
