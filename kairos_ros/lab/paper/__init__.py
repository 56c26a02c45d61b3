"""Figures of Dai et al. that need episodes of a policy: recorded, branched or delayed."""
