"""Whether a GPU computes what a CPU computes, in every number format, and how fast it is."""
