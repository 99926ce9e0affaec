"""A simulator of DP x PP x TP training steps on a virtual clock, with injected faults whose cost is known exactly."""
