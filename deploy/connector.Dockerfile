# The connector. Built from the repository's root: docker build -f deploy/connector.Dockerfile -t twofold-connector .
# Two stages: the first has uv and a C compiler (the row transcoder is compiled where there is one), the second only what runs.
FROM python:3.11-slim-trixie AS build

RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir uv==0.13.9
ENV UV_PROJECT_ENVIRONMENT=/opt/twofold UV_PYTHON=/usr/local/bin/python3.11 UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1

# The locked dependencies are a layer of their own: a change of the code does not fetch them again.
WORKDIR /src
COPY pyproject.toml uv.lock ./
COPY avro/pyproject.toml avro/
COPY connector/pyproject.toml connector/
COPY spark_jobs/pyproject.toml spark_jobs/
RUN uv sync --frozen --no-dev --package twofold --no-install-workspace

COPY avro avro
COPY connector connector
RUN uv sync --frozen --no-dev --package twofold --no-editable


FROM python:3.11-slim-trixie

RUN groupadd --gid 10001 twofold \
    && useradd --uid 10001 --gid twofold --no-create-home --home-dir /var/tmp/twofold --shell /usr/sbin/nologin twofold \
    && install -d -o twofold -g twofold -m 0700 /var/tmp/twofold
COPY --from=build /opt/twofold /opt/twofold
ENV PATH=/opt/twofold/bin:$PATH PYTHONUNBUFFERED=1

# The default of spool.folder: a cache, but one that may grow to gigabytes, so not the container's own layer.
VOLUME /var/tmp/twofold
WORKDIR /var/tmp/twofold
USER 10001:10001
# It comes round: a standby is healthy, one that hangs or refuses is not. With another port in status.listen: docker run --health-cmd.
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=4 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8787/healthz', timeout=5)"]
ENTRYPOINT ["twofold"]
CMD ["run"]
