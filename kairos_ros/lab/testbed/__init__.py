"""A fleet of processes for demos, drills and replay: start, tasks, cloud and link, live view."""
