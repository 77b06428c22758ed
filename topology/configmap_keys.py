"""Name the keys of the topology ConfigMap, for programs that write one and do not need the parser."""

TEXT_KEY = "topology_config"  # DLRover's chart renders this key, empty by default
YAML_KEY = "topology.yaml"
CONFIRM = "turnout.dev/confirmed-map"  # annotation: the digest of a large change that the admin wants
