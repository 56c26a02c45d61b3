"""Demonstrations, trials and the model card of the single arm."""
