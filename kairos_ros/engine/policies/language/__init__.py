"""One prefill, two kinds of answers: action chunks, and language that goes on over later frames."""
