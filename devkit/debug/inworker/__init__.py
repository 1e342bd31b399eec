"""What runs inside the workers of somebody else's program.

It is shipped to them as files and imported under the name `devkit_inworker`, so it uses the standard library and
relative imports only. It never raises into the program, and never keeps one of its processes alive.
"""

PROTOCOL = 1  # of the talk between client, hub and agents: raised when an older side could not follow
