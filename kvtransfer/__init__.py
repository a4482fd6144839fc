"""Moves block tables and block contents between workers, and holds what both workers' io processes share."""
