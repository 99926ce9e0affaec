"""Asks the kubelet which pods hold the node's devices."""
