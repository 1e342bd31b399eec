"""`devkit doctor`: is this machine, this cluster fit to train? Facts from every node, and rules that judge them."""
