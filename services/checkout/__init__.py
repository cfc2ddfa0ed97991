"""The checkout: from a receipt to one that is paid, across all services, or back to an open basket."""
