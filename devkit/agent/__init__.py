"""Agents: a user's environment without a model, and recorded conversations."""
