"""Makes files of the repository from code: Grafana boards, roles, policies, lock files.

The modules alerts, grafana, page, reference, translations and wishes compare the files with the code and return 1 if
one is stale; with --write they write them. chart, crds, fault_report_policy, guide_index, lock, placement_picture and
rbac always write: tests, not these modules, compare their files with the code.
"""
