"""An embedded Kubernetes API: objects, list, watch, binding."""
