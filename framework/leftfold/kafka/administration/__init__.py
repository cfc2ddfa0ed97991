"""Administration of a cluster: topics, groups, ACLs, state topics and dead letters."""
