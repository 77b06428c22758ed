"""Listings as plain functions of what was seen: a module a verb, and one for the forms of all."""
