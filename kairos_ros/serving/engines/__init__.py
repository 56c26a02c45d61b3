"""The engines of one server: what each computes, holds in memory and serves."""
