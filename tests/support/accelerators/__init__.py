"""Real training on the simulated device, with whyidle attached, beside the device's own schedule."""
