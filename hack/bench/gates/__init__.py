"""The benchmark of gates: gangs on a real kube-scheduler that knows no extender, with our gates and without."""
