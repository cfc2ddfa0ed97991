"""The worker processes that `leftfold run` starts: deciders, reactions, routers and views."""
