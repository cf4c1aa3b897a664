"""What to run next: the commands that would decide what these runs leave open."""
