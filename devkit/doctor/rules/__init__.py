"""From facts to findings: pure functions, one module for each kind of trouble."""
