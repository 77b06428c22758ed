"""The yard on which a job is put under faults, and the hands that deal them."""
