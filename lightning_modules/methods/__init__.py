"""Methods of training that combine with any optimizer and model: each a callback and a file."""
