"""`python -m trainer.demo`: a tiny model learns to add on this machine, in two minutes and from nothing."""
