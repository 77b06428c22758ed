"""Listings as plain functions of observed values: one module for each verb, and one for the output formats."""
