"""`devkit smoke`: a full PPO run on a tiny model, with checks that name what is broken."""
