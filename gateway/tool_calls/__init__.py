"""Tool calls and reasoning in a model's text, told apart as the text comes. Standard library only, no I/O."""
