"""Batches token steps continuously and emits tokens. Can prefill locally within a budget."""
