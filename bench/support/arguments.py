"""Types of command line options that several benchmarks have."""

import argparse


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def positive_ints(text: str) -> list[int]:
    """Whole numbers of at least 1, separated by commas; in order, each once."""
    return sorted({positive_int(part) for part in text.split(",")})
