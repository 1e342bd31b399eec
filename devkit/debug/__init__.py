"""Stop, look at and resume any worker of any Ray program. Knows nothing of `trainer`."""
