"""Load generator: talks HTTP to any OpenAI-compatible server, and imports nothing of ours."""
