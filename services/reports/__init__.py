"""What the chain's management reads: views by SQL, computed by Spark. It decides nothing."""
