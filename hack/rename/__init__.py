"""Renames the tree from private words to the field's, by map.txt and identifiers.txt. Deleted when all is renamed."""
