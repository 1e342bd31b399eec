"""What pytest does for this project beside running tests. `conftest.py` loads it."""
