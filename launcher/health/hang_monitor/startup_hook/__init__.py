"""The folder that PYTHONPATH shows to a fresh training process, whose Python imports `sitecustomize` from it."""
