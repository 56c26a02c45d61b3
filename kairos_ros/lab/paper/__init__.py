"""Figures of 000 that need episodes of a policy: recorded, branched or delayed."""
