"""What pytest leaves alone here."""

collect_ignore = ["inject"]  # importing it is what it is for, but not in the tests' own process
