"""The fleet file: which robots do which tasks with which models, and what if one fails."""
