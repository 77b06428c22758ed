"""Build what is published: wheels, and images as OCI layouts, without a daemon and without root."""
