"""Grammars of outputs: from what a client asks for to what workers follow. The library is llguidance (ADR 0019)."""
