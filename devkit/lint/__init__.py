"""`devkit lint`: what is wrong with a training command or a launch script, which is parsed and never run."""
