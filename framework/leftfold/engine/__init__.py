"""The loops over ports, free of technology: deciding in lanes, folding into views, planning rebuilds, verifying."""
