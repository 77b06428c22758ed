"""An autoscaler at full size, fed as an API server would feed it, and what its looks cost."""
