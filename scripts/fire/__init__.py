"""Parts of `scripts/under_fire.py`: the stack, the load on it, the faults, and the count."""
