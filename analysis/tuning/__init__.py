"""What tuned studies say: best rates, with intervals."""
