"""What each host of a planned fleet runs, and how the hosts follow one plan."""
