"""The replenishment: a policy that orders what a store is about to run out of."""
