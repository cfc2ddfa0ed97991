"""The processes that `leftfold run` starts."""
