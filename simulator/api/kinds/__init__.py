"""The kinds that the API knows, as a table, and those that CRDs add: names, defaults, schemas, columns."""
