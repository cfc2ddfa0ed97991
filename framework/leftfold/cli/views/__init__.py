"""Commands on views: rebuild, plan, diff, promote, drop, verify, explain, retry."""
