"""Real training on the simulated device, with whyidle attached, compared with the device's own schedule."""
