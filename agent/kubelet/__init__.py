"""What the kubelet tells: whose the node's devices are."""
