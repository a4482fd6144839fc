"""Turns a prompt into filled KV blocks and the first token."""
