"""The local cluster on which a job is put under faults, and the injectors of these."""
