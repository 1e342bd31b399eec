"""Rollout engines behind the Protocol `trainer.interfaces.Engine`: one adapter file each."""
