"""`kairos dashboard`: the fleet in a browser, read only. Needs the extra `web`."""
