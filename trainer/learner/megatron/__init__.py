"""Megatron-core as the training engine: `actor.strategy=megatron`, `critic.strategy=megatron`."""
