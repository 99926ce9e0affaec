"""What works beside the training, and the steps beside it."""
