"""The programs that a control plane starts: command lines, the objects of training-operator, the content of etcd."""
