"""`kairos report`: runs compared on one self-contained page."""
