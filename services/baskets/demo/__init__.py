"""`make demo`: the grocery chain at work on real servers, with processes killed under it."""
