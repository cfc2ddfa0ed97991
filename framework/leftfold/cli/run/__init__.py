"""Commands that set up and run services: new, topics, up, dev, run, check, simulate."""
