"""A judge behind an OpenAI-compatible endpoint."""
