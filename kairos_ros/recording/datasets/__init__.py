"""Tasks of bags as episodes of datasets that policies are trained on."""
