"""Calls of vision-language models: who makes them, what they cost, which goes first and where."""
