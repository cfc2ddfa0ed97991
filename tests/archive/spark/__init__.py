"""The archive under Spark: streams that cannot read it, tables in SQL, the notebook."""
