"""A question, and the runs that answer it: seed after seed, until nothing more is to be learned."""
