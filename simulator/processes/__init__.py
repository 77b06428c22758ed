"""Pods as processes: what a kubelet does with a pod's containers, done with processes of this machine."""
