"""Makes files of the repository from code: dashboards, roles, policies, lock files."""
