"""Speed, measured on real servers as ratios inside one run."""
