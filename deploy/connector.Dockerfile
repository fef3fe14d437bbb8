# The connector, from its wheels. In the repository's root: make wheels, then
# docker build -f deploy/connector.Dockerfile -t twofold-connector .
FROM python:3.11.17-slim-trixie@sha256:45037981b62b34b44602584fccbc4d884d5f7dc92c7ee86bb38a698a79fe1e51 AS build

RUN pip install --no-cache-dir uv==0.13.9
ENV UV_PROJECT_ENVIRONMENT=/opt/twofold UV_PYTHON=/usr/local/bin/python3.11 UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1

# The locked dependencies are a layer of their own: a change of the code does not fetch them again.
WORKDIR /src
COPY pyproject.toml uv.lock ./
COPY avro/pyproject.toml avro/
COPY connector/pyproject.toml connector/
COPY spark_jobs/pyproject.toml spark_jobs/
COPY common/pyproject.toml common/
COPY reader/pyproject.toml reader/
RUN uv sync --frozen --no-dev --package twofold --no-install-workspace

# The row path is compiled in the wheel of the image's architecture.
COPY dist/*.whl dist/
RUN uv pip install --python /opt/twofold --no-deps --no-index --find-links dist twofold twofold-avro twofold-common twofold-reader


FROM python:3.11.17-slim-trixie@sha256:45037981b62b34b44602584fccbc4d884d5f7dc92c7ee86bb38a698a79fe1e51

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
