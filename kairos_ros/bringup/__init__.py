"""Plans of processes: which nodes a launch file, a fleet file or an arm needs, and with what."""
