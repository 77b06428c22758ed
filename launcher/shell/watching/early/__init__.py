"""The folder that a fresh training process finds by PYTHONPATH: Python imports `sitecustomize` from it at its start."""
