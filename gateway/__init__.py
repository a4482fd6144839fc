"""HTTP in, tokens out. Chooses the pair of workers. Never imports torch."""
