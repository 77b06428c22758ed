"""Compare what honest tenants of a cluster get with and without a tenant that attacks the extender."""
