"""SQL of views and ad-hoc queries: what is allowed, and which queries a stream can keep up to date."""
