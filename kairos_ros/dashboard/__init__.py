"""`kairos dashboard`: the fleet in a browser, read only. Needs `kairos_ros[web]`."""
