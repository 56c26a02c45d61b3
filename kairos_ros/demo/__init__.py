"""`kairos demo`: a simulated fleet, served end to end, watched live and summed up."""
