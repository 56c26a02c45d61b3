"""Questions that a policy answers in words: which of them are decoded now, and what may be said."""
