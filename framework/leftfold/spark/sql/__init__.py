"""What SQL may say in a query view: parsed by Spark, judged here, before Spark runs any of it."""
