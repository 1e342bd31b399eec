"""A multi-node PPO trainer on Ray: `python -m trainer.main_ppo key=value ...`."""
