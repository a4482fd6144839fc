"""Parts of `scripts/floor.py`: what the machine can do, what a step has to do, what it takes."""
