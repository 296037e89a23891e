# make run serves. make setup installs what development needs; the targets below it call make setup.
# A stamp in .venv is as new as the lock files that were installed: a second run installs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Four workers keep two cores busy: two of them run what starts clusters, and wait often.
WORKERS ?= 4
WHOLE_RUN := $(BIN)/python -m pytest -p tests.whole_run -n $(WORKERS) --dist loadgroup --junitxml build/tests.xml
# Compiled modules are kept, whatever the environment says: else each worker compiles all modules and tests again.
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: run setup check unit test test-long test-nightly kill-test lint format docs demo jar bench profile chaos soak-claims soak-people \
	fuzz openapi settings lock upgrade clean
.DELETE_ON_ERROR:

# Needs only Python and make.
run: $(VENV)/service.stamp
	@exec $(BIN)/blocklist serve

setup: $(VENV)/dev.stamp
	@$(BIN)/python spark-agent/build.py --if-possible

# Before each commit: the linters beside the unit tests.
check: $(VENV)/dev.stamp
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint unit

# Two workers, without the plugin of schemathesis, which takes a second to import in each.
unit: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist loadgroup -p no:schemathesis tests/unit $(ARGS)

# On real services. tests/scheduling.py says which tests share the workers, tests/whole_run.py what is measured and repeated.
test: jar
	$(WHOLE_RUN) -m "not long" $(ARGS)

# Variations that take minutes each.
test-long: jar
	$(WHOLE_RUN) -m long $(ARGS)

# All tests; those that are random or run for a time do so ten times as long. Then other versions of Spark.
test-nightly: export TEST_LENGTH ?= 10
test-nightly: jar
	@failed=; \
	$(WHOLE_RUN) $(ARGS) || failed=1; \
	$(BIN)/python -m tests.applications versions || failed=1; \
	$(BIN)/python -m tests.applications chaos || failed=1; \
	test -z "$$failed"

# Ten minutes of kill -9 each second, under load; make test has a short form.
kill-test: $(VENV)/dev.stamp
	$(BIN)/python -m tests.chaos --replicas 0 --kills --minutes 10 $(ARGS)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation site: built into build/site, then served on loopback and rebuilt at each change.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/dev.stamp
	$(BIN)/mkdocs build --strict
	$(BIN)/mkdocs serve --livereload $(ARGS)

# `make demo ON=kubernetes` shows pods on a Kubernetes control plane, `ON=yarn` containers on YARN, instead of a Spark cluster.
demo: jar
	@$(BIN)/python -m demo$(if $(ON),.$(ON)) $(ARGS)

# The agent for Spark drivers: compiles spark-agent/ into the package. As root on Debian a missing JDK is installed.
jar: $(VENV)/dev.stamp
	@$(BIN)/python spark-agent/build.py

bench: jar
	$(BIN)/python -m benchmarks $(ARGS)

bench-%: jar
	$(BIN)/python -m benchmarks $* $(ARGS)

# Profiles of the hot paths, by py-spy.
profile: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.profile

# Half an hour of faults; make test has a short form.
chaos: $(VENV)/dev.stamp
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: demo-flink

# A Flink cluster on this machine and a job that leaves a node; downloads Flink (330 MB) the first time.
demo-flink: $(VENV)/dev.stamp
	@$(BIN)/python -m demo.flink $(ARGS)

.PHONY: chaos-spark test-spark-versions cluster test-kubernetes test-yarn

# The control plane of Kubernetes, and Helm, for the tests. Needs Go; 15 minutes of CPU the first time on a machine.
cluster: $(VENV)/dev.stamp
	$(BIN)/python -m tests.kubernetes build

# The tests on a real cluster, which make test also runs where Go is present.
test-kubernetes: cluster jar
	$(BIN)/python -m pytest tests/kubernetes $(ARGS)

# Jobs of Spark whose agent, jar or service has a fault, in turn; make test has a short form.
chaos-spark: jar
	$(BIN)/python -m tests.applications chaos $(ARGS)

# The applications of the tests, also on Kubernetes where Go is present, with other versions of Spark: a few hundred
# megabytes each; `ARGS="3.5.9"` for one.
test-spark-versions: jar
	$(BIN)/python -m tests.applications versions $(ARGS)

# On a real ResourceManager with NodeManagers, which Maven downloads once (66 MB); part of make test.
test-yarn: jar
	$(BIN)/python -m pytest tests/yarn $(ARGS)

# An hour of several owners against each other; make test has a short form.
soak-claims: $(VENV)/dev.stamp
	$(BIN)/python -m tests.chaos --owners --replicas 2 --minutes 60 $(ARGS)

# An hour of two people with the command and an alert manager on the same nodes; make test has a short form.
soak-people: $(VENV)/dev.stamp
	$(BIN)/python -m tests.chaos --people --minutes 60 $(ARGS)

# A million random requests to the fast path and to the ordinary route; make test sends 50,000.
fuzz: $(VENV)/dev.stamp
	$(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: release release-tag publish image test-postgresql

# Into dist/: wheel and sdist, jar, chart, image, bill of materials, checksums. From a checkout without changes.
release: jar
	$(BIN)/python -m release $(ARGS)

# The image alone, in dist/, with Debian's podman and without a registry; as root on Debian, what is missing is installed.
# `ARGS="--target spark"`: that of the compose file's Spark, which stays in the cache.
image: jar
	@$(BIN)/python -m release.image $(ARGS)

# Signs and publishes what `make release` built: release.yml runs it, where docker, cosign and gh are logged in. IMAGE is
# the image's place, such as ghcr.io/OWNER/NAME. What the Python index takes is in packages/ afterwards.
publish: VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' blocklist/__init__.py)
publish:
	cosign sign-blob --yes --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS
	docker load --input dist/blocklist-$(VERSION)-image.tar
	docker tag localhost/blocklist:$(VERSION) $(IMAGE):$(VERSION)
	docker push $(IMAGE):$(VERSION)
	cosign sign --yes "$$(docker inspect --format '{{index .RepoDigests 0}}' $(IMAGE):$(VERSION))"
	gh release create v$(VERSION) dist/* --title v$(VERSION) --notes-file CHANGELOG.md
	mkdir packages
	cp dist/*.whl dist/*.tar.gz packages

# Before a release is published: the tag must name the version.
release-tag: $(VENV)/dev.stamp
	@test "$(TAG)" = "v$$($(BIN)/python -c 'import blocklist; print(blocklist.__version__)')" \
	|| { echo "The tag is '$(TAG)', but not the version of blocklist/__init__.py with a v before it."; exit 1; }

# What depends on the version of PostgreSQL. POSTGRESQL_BIN is the folder of another server's programs.
test-postgresql: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -k postgresql tests/integration tests/unit $(ARGS)

openapi: $(VENV)/service.stamp
	$(BIN)/blocklist openapi > openapi/blocklist.json

# The table in README.md of what the tests run with.
.PHONY: versions
versions: $(VENV)/dev.stamp
	$(BIN)/python -m tests.docs.versions

settings: $(VENV)/service.stamp
	$(BIN)/blocklist settings --into docs/settings.md

# After a change of pyproject.toml: locks what is new and keeps all other versions.
lock: $(VENV)/dev.stamp
	$(BIN)/python -m requirements

# Newer versions of everything.
upgrade: $(VENV)/dev.stamp
	$(BIN)/python -m requirements --upgrade

clean:
	rm -rf $(VENV) build dist blocklist/spark/blocklist-spark.jar .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "blocklist needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)

# The checkout itself is installed in a call of its own: pip has no hash for a folder.
define install
	$(PIP) install --quiet --require-hashes $(foreach lock,$(1),-r requirements/$(lock).txt)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $(VENV)/service.stamp $@
endef

$(VENV)/service.stamp: requirements/service.txt requirements/build.txt | $(BIN)/python
	$(call install,service build)

$(VENV)/dev.stamp: requirements/dev.txt requirements/service.txt requirements/build.txt | $(BIN)/python
	$(call install,dev)
