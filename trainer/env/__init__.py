"""Environments that come with the trainer."""
