# The service is the last stage; `--target spark` is a Spark with the agent, for the compose file.
FROM python:3.13-slim AS build
WORKDIR /srv
COPY requirements/service.txt requirements/
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir --require-hashes -r requirements/service.txt

FROM python:3.13-slim AS spark
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 8225 --create-home spark
WORKDIR /srv
COPY requirements/spark.txt requirements/
RUN pip install --no-cache-dir --require-hashes -r requirements/spark.txt
COPY blocklist blocklist
ENV PYTHONPATH=/srv SPARK_NO_DAEMONIZE=1
USER 8225

FROM python:3.13-slim
RUN useradd --system --uid 8224 --home-dir /srv blocklist \
    && install --directory --owner blocklist --mode 750 /data \
    && printf '#!/bin/sh\nexec python -m blocklist.cli "$@"\n' > /usr/local/bin/blocklist \
    && chmod 755 /usr/local/bin/blocklist
COPY --from=build /venv /venv
WORKDIR /srv
COPY blocklist blocklist
COPY app app
COPY migrations migrations
# Compiled modules: the service cannot write them, and without them a start takes three times as long.
RUN /venv/bin/python -m compileall -q app blocklist migrations
USER 8224
VOLUME /data
# Beyond loopback the service requires tokens. The first start creates the admin's; `blocklist` in the container uses it.
# These are only the name of the file; the secret is in it.
# hadolint ignore=DL3064
ENV PATH=/venv/bin:$PATH \
    PYTHONPATH=/srv \
    PYTHONDONTWRITEBYTECODE=1 \
    BLOCKLIST_HOST=0.0.0.0 \
    BLOCKLIST_AUTH=tokens \
    BLOCKLIST_ADMIN_TOKEN_FILE=/data/admin.token \
    BLOCKLIST_TOKEN_FILE=/data/admin.token \
    BLOCKLIST_DATABASE_URL=sqlite:////data/blocklist.db \
    BLOCKLIST_LOG_FORMAT=json
EXPOSE 8224
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8224/readyz', timeout=2)"]
# The chart in deploy/helm/ has commands of its own. Migrating is safe to repeat; exec passes SIGTERM to the service.
CMD ["sh", "-c", "python -m app migrate && exec python -m app"]
