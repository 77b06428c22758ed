"""The CustomResourceDefinitions of the job kinds, one schema each. `python -m hack.codegen.crds` writes them."""
