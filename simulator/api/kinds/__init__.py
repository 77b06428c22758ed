"""The kinds that the API knows, as a table, and the kinds that CRDs add: names, defaults, schemas, columns."""
