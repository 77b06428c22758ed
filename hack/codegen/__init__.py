"""Makes files of the repository from code: Grafana boards, roles, policies, lock files."""
