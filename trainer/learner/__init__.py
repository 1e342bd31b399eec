"""Models in training: loading, sharding, the optimizer, checkpoints."""
