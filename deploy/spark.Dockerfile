# The Spark jobs from their wheels, with a Spark of their own (local mode). In the repository's root:
# make wheels, then docker build -f deploy/spark.Dockerfile -t twofold-spark .
FROM python:3.11.17-slim-trixie@sha256:45037981b62b34b44602584fccbc4d884d5f7dc92c7ee86bb38a698a79fe1e51 AS build

RUN pip install --no-cache-dir uv==0.13.9
ENV UV_PROJECT_ENVIRONMENT=/opt/twofold UV_PYTHON=/usr/local/bin/python3.11 UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 \
    TWOFOLD_CACHE=/opt/twofold/jars

# The locked dependencies are a layer of their own: a change of the code does not fetch them again.
# What Spark brings for Kubernetes, machine learning, Spark Connect's server and RocksDB these jobs never load: a quarter of it.
WORKDIR /src
COPY pyproject.toml uv.lock ./
COPY avro/pyproject.toml avro/
COPY connector/pyproject.toml connector/
COPY spark_jobs/pyproject.toml spark_jobs/
COPY common/pyproject.toml common/
COPY reader/pyproject.toml reader/
RUN uv sync --frozen --no-dev --package twofold-spark --extra spark --no-install-workspace \
    && cd /opt/twofold/lib/python3.11/site-packages/pyspark \
    && rm -rf data examples \
    && cd jars \
    && rm -f breeze* kubernetes-* rocksdbjni-* spark-connect_* spark-kubernetes_* spark-mllib_* spire*

COPY dist/*.whl dist/
RUN uv pip install --python /opt/twofold --no-deps --no-index --find-links dist twofold-spark twofold-avro twofold-common \
    && /opt/twofold/bin/twofold-spark jars


FROM python:3.11.17-slim-trixie@sha256:45037981b62b34b44602584fccbc4d884d5f7dc92c7ee86bb38a698a79fe1e51

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-21-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid 10001 twofold \
    && useradd --uid 10001 --gid twofold --no-create-home --home-dir /var/lib/twofold --shell /usr/sbin/nologin twofold \
    && install -d -o twofold -g twofold -m 0750 /var/lib/twofold
COPY --from=build /opt/twofold /opt/twofold
ENV PATH=/opt/twofold/bin:$PATH PYTHONUNBUFFERED=1 TWOFOLD_CACHE=/opt/twofold/jars SPARK_LOCAL_DIRS=/var/lib/twofold/local

# The warehouse (tables and their catalog) and the checkpoints.
VOLUME /var/lib/twofold
WORKDIR /var/lib/twofold
USER 10001:10001
ENTRYPOINT ["twofold-spark"]
CMD ["--help"]
