# The service is the last stage; `--target spark` is a Spark with the agent, for the compose file.
# With `--build-arg JAR=given` the jar of the checkout, from `make jar`, is used; otherwise it is compiled.
ARG JAR=compiled

FROM python:3.13-slim AS pyspark
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 8225 --create-home spark
COPY requirements/spark.txt /tmp/
RUN pip install --no-cache-dir --require-hashes -r /tmp/spark.txt

FROM pyspark AS compiled
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jdk-headless \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /srv
COPY LICENSE NOTICE ./
COPY blocklist/__init__.py blocklist/
COPY spark-agent spark-agent
RUN mkdir blocklist/spark \
    && python spark-agent/build.py

FROM scratch AS given
COPY blocklist/spark/blocklist-spark.jar /srv/blocklist/spark/

# hadolint ignore=DL3006
FROM ${JAR} AS jar

FROM pyspark AS agent
WORKDIR /srv
COPY blocklist blocklist
COPY --from=jar /srv/blocklist/spark/blocklist-spark.jar blocklist/spark/
# Files have the modes of the checkout, which may be those of its user alone.
RUN chmod -R a+rX blocklist

FROM pyspark AS spark
# For the checks of the compose file: whether a URL answers.
RUN printf '#!/usr/bin/env python3\nimport sys, urllib.request\nurllib.request.urlopen(sys.argv[1], timeout=5)\n' \
        > /usr/local/bin/answers \
    && chmod 755 /usr/local/bin/answers
COPY --from=agent /srv/blocklist /srv/blocklist
# Spark keeps the folders of applications there; without it, in the folder where it is installed.
ENV PYTHONPATH=/srv \
    SPARK_NO_DAEMONIZE=1 \
    SPARK_WORKER_DIR=/home/spark/work
WORKDIR /home/spark
USER 8225

FROM python:3.13-slim AS build
COPY requirements/service.txt /tmp/
RUN python -m venv --without-pip /venv \
    && pip --python /venv/bin/python install --no-cache-dir --no-compile --require-hashes -r /tmp/service.txt \
    && /venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /venv/lib
WORKDIR /srv
COPY blocklist blocklist
COPY --from=jar /srv/blocklist/spark/blocklist-spark.jar blocklist/spark/
COPY app app
COPY migrations migrations
# Compiled modules: the service cannot write them, and without them a start takes three times as long. They are valid
# without the times of their sources, which a build may change.
RUN chmod -R a+rX . \
    && /venv/bin/python -m compileall -q --invalidation-mode unchecked-hash app blocklist migrations

FROM python:3.13-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
    && useradd --system --uid 8224 --home-dir /srv blocklist \
    && install --directory --owner blocklist --mode 750 /data \
    && printf '#!/bin/sh\nexec python -m blocklist.cli "$@"\n' > /usr/local/bin/blocklist \
    && chmod 755 /usr/local/bin/blocklist
LABEL org.opencontainers.image.title="blocklist" \
    org.opencontainers.image.description="One place where a data platform says: do not run work on that machine" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="0.1.0"
COPY --from=build /venv /venv
COPY --from=build /srv /srv
WORKDIR /srv
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
# Process 1 of a container gets no signal that it does not handle; tini hands all to the command, whatever that is.
ENTRYPOINT ["tini", "--"]
# The chart in deploy/helm/ has commands of its own. Migrating is safe to repeat; exec passes SIGTERM to the service.
CMD ["sh", "-c", "blocklist migrate && exec blocklist serve"]
