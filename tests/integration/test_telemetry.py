"""OpenTelemetry: off by default; with `otlp` a collector receives traces of requests, without secrets."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.http_server import Handler, serving
from tests.integration.bodies import block
from tests.integration.conftest import Start
from tests.integration.process import ServiceProcess, environment, run_app, url_of

SECRET = "blocklist_0badcafe_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


class FakeCollector:
    """What was received by OTLP over HTTP: path and body of each POST."""

    def __init__(self) -> None:
        self.url = ""
        self.posts: list[tuple[str, bytes]] = []

    def spans(self) -> list[dict[str, Any]]:
        """Name, trace and attributes of each span."""
        found: list[dict[str, Any]] = []
        for path, body in self.posts:
            if path != "/v1/traces":
                continue
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = {own.key: own.value.string_value for own in resource.resource.attributes}
                found += [
                    {
                        "name": span.name,
                        "trace": span.trace_id.hex(),
                        "service": about["service.name"],
                        **{own.key: own.value.string_value or own.value.int_value for own in span.attributes},
                    }
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
        return found

    def metrics(self) -> set[str]:
        """Names of the metrics."""
        return {
            metric.name
            for path, body in self.posts
            if path == "/v1/metrics"
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextmanager
def running_collector() -> Iterator[FakeCollector]:
    """Run a collector on loopback."""
    collector = FakeCollector()

    class Posts(Handler):
        def do_POST(self) -> None:
            body = self.body()
            zipped = self.headers.get("content-encoding") == "gzip"
            collector.posts.append((self.path, gzip.decompress(body) if zipped else body))
            self.reply(200)

    with serving(Posts) as collector.url:
        yield collector


@pytest.fixture
def collector() -> Iterator[FakeCollector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture
def traced_service(collector: FakeCollector, start: Start, monkeypatch: pytest.MonkeyPatch) -> ServiceProcess:
    """A service that exports to the collector."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    return start(telemetry="otlp")


def test_requests_are_spans_of_the_trace_of_their_client(
    traced_service: ServiceProcess, collector: FakeCollector
) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    with traced_service.client() as client:
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        client.put("/blocklist/nodes/a", json=block(), headers=headers).raise_for_status()
        client.get("/blocklist/nodes/free")
    traced_service.stop()
    spans = {span["name"]: span for span in collector.spans()}
    put, get = spans["PUT /blocklist/nodes/{node_id}"], spans["GET /blocklist/nodes/{node_id}"]
    assert (put["trace"], put["http.response.status_code"], put["service"]) == (trace, 201, "blocklist")
    assert get["http.response.status_code"] == 404
    assert "http.server.request.duration" in collector.metrics()


def test_probes_polls_and_streams_are_not_traced(traced_service: ServiceProcess, collector: FakeCollector) -> None:
    with traced_service.client() as client:
        for path in ("/healthz", "/readyz", "/metrics", "/blocklist"):
            assert client.get(path).status_code == 200
        with client.stream("GET", "/blocklist/watch") as watch:
            next(watch.iter_lines())
        client.get("/blocklist/changes", headers={"accept": "application/x-ndjson"})
        client.get("/listeners")
    traced_service.stop()
    assert {span["name"] for span in collector.spans()} == {"GET /listeners"}


def test_no_secret_is_exported(traced_service: ServiceProcess, collector: FakeCollector) -> None:
    with traced_service.client() as client:
        headers = {"authorization": f"Bearer {SECRET}", "cookie": f"blocklist_session={SECRET}", "x-request-id": "r"}
        client.get(f"/blocklist/changes?since=0&token={SECRET}", headers=headers)
        client.put(f"/blocklist/nodes/a?token={SECRET}", json=block(cause=SECRET), headers=headers)
        client.put(f"/blocklist/nodes/b?token={SECRET}", content=SECRET, headers=headers)
        client.get(f"/nothing?token={SECRET}")
    traced_service.stop()
    assert len(collector.spans()) == 4
    assert not any(SECRET.encode() in body for _, body in collector.posts)
    assert {span["url.query"] for span in collector.spans()} == {"REDACTED"}


def test_it_is_off_by_default(collector: FakeCollector, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    service = start()
    with service.client() as client:
        client.get("/listeners")
    service.stop()
    assert not collector.posts


def test_an_unreachable_collector_does_not_disturb_the_service(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    service = start(telemetry="otlp")
    with service.client() as client:
        assert client.put("/blocklist/nodes/a", json=block()).status_code == 201
    service.terminate()
    assert service.exit_code() == 0


def test_the_log_contains_no_secret_of_the_endpoint(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://u:{SECRET}@127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://u:{SECRET}@127.0.0.1:9/{SECRET}?key={SECRET}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    service = start(telemetry="otlp")
    with service.client() as client:
        client.get("/listeners")
    service.stop()
    assert "encountered while exporting" in service.log()
    assert SECRET not in service.log()


class TestStart:
    def test_a_missing_endpoint_is_reported(self, migrated: Path) -> None:
        env = environment(telemetry="otlp", database_url=url_of(migrated), port="0")
        done = run_app(env={name: value for name, value in env.items() if not name.startswith("OTEL_")})
        assert done.returncode == 2
        assert "OTEL_EXPORTER_OTLP_ENDPOINT" in done.stderr
        assert "Traceback" not in done.stderr

    def test_missing_packages_are_reported(self, migrated: Path, tmp_path: Path) -> None:
        """A folder before the installed packages hides the SDK."""
        (tmp_path / "sitecustomize.py").write_text(
            "import sys\n"
            "class Away:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.startswith('opentelemetry.sdk'):\n"
            "            raise ModuleNotFoundError(name=name)\n"
            "sys.meta_path.insert(0, Away())\n"
        )
        env = environment(telemetry="otlp", database_url=url_of(migrated), port="0") | {"PYTHONPATH": str(tmp_path)}
        done = run_app(env=env, forked=False)
        assert done.returncode == 2
        assert "pip install 'blocklist[telemetry]'" in done.stderr
        assert "Traceback" not in done.stderr
