# One image for workers, projectors, Spark's master and workers: everything from the lock, on the Python the lock is made for.
FROM python:3.11-slim

RUN apt-get update \
 && apt-get install --yes --no-install-recommends default-jre-headless procps \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock

COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY framework ./framework
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

COPY events ./events
COPY services ./services
COPY projections ./projections
ENV PYTHONPATH=/app PYTHONUNBUFFERED=1 PYSPARK_PYTHON=python

RUN useradd --create-home --uid 1000 leftfold && chown leftfold /app
# As a number, so that Kubernetes sees that it is not root.
USER 1000
# Runs whatever it is told, and knows what Spark on Kubernetes means by `executor` and `driver`.
ENTRYPOINT ["python", "-m", "leftfold.cli.pod"]
CMD ["leftfold", "run"]
