# The verbs of this repository. `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin
DATA_DIR ?= ./data
ROWS ?=
SEED ?=
AUDIT ?=
BENCH ?=
PEERS ?=
CLIENTS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test check clients rocketmq test-faults bench bench-peers audit openapi migration demo demo-failover lock wheels clean

help:  ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# Two stamps, so that `make run` on a fresh machine installs what the service needs and nothing more.
.venv/.run: requirements.lock pyproject.toml setup.py client/pyproject.toml
	@test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable . --editable ./client
	@touch $@

.venv/.dev: requirements-dev.lock pytest_escrowmq/pyproject.toml .venv/.run
	$(BIN)/pip install --quiet --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable ./pytest_escrowmq
	@touch $@

# Without dependencies, see pyproject.toml; built by the setuptools of the development lock, as the package comes as source.
.venv/.demo: requirements-demo.lock .venv/.dev
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --require-hashes -r requirements-demo.lock
	@touch $@

# Spark comes as source, too. A Java is added where the machine has none that fits.
.venv/.audit: requirements-audit.lock requirements-java.lock .venv/.run
	$(BIN)/pip install --quiet --no-build-isolation --require-hashes -r requirements-audit.lock
	$(BIN)/python -m audit.spark.java > /dev/null 2>&1 || $(BIN)/pip install --quiet --require-hashes -r requirements-java.lock
	@touch $@

setup: .venv/.dev .venv/.audit  ## make .venv with everything that running, testing and measuring needs

run: .venv/.run  ## start the service on 127.0.0.1:8080; topics are made as they are used, data is kept in ./data
	$(BIN)/escrowmq serve --dev --data-dir $(DATA_DIR)

# What this repository is compiled to is kept, also where the environment says otherwise: tests start hundreds of processes.
test test-faults clients rocketmq: export PYTHONDONTWRITEBYTECODE :=

test: .venv/.demo .venv/.audit  ## the everyday tests
	$(BIN)/pytest -n auto --dist loadgroup -m "not faults and not clients and not rocketmq"

check: .venv/.dev .venv/.audit  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clients: .venv/.dev  ## generate, compile and run clients in other languages (CLIENTS="typescript go")
	CLIENTS="$(CLIENTS)" $(BIN)/pytest -m clients tests/clients

rocketmq: .venv/.dev  ## hand stores over between a real RocketMQ broker and EscrowMQ, both ways (FAULTS=ci or FAULTS=full)
	FAULTS=$(or $(FAULTS),ci) $(BIN)/pytest -n 3 --dist loadgroup -m rocketmq tests/rocketmq

test-faults: .venv/.dev .venv/.audit  ## power cuts, kills, failing disks (FAULTS=ci or FAULTS=full)
	PYTHONHASHSEED=0 FAULTS=$(or $(FAULTS),ci) $(BIN)/pytest -n auto --dist loadgroup --durations 20 -m faults

bench: .venv/.dev .venv/.audit  ## measure, each figure beside its limit in the same run (BENCH="http --rounds 5")
	$(BIN)/python -m benchmarks $(BENCH)

bench-peers: .venv/.dev .venv/.audit  ## measure beside Redis, NATS, RocketMQ, Kafka and RabbitMQ, those that can be had (PEERS="redis rocketmq")
	$(BIN)/python -m benchmarks.peers $(PEERS)

openapi: .venv/.run  ## rebuild openapi/openapi.json
	$(BIN)/escrowmq openapi --out openapi/openapi.json

migration: .venv/.run  ## a new migration of the registry: make migration name="..."
	@mkdir -p build && rm -f build/scratch.db
	$(BIN)/alembic -x url=sqlite:///build/scratch.db upgrade head
	$(BIN)/alembic -x url=sqlite:///build/scratch.db revision --autogenerate -m "$(name)" \
		--rev-id $$(printf %04d $$(($$(ls alembic/versions/*.py 2>/dev/null | wc -l) + 1)))

audit: .venv/.audit  ## prove the outcome of every transaction of `make run`: make audit LOG=DIR for another store
	$(BIN)/escrowmq audit run --log $(or $(LOG),$(DATA_DIR)/store)

demo: .venv/.demo $(if $(AUDIT),.venv/.audit)  ## every flight out of New York in 2013 as a transaction, with crashes (ROWS=5000, SEED=7, AUDIT=1)
	$(BIN)/python -m examples.flights $(if $(ROWS),--rows $(ROWS)) $(if $(SEED),--seed $(SEED)) $(if $(AUDIT),--audit)

demo-failover: .venv/.demo  ## flights on two machines; that of the service is lost with its disk, ten times (ROWS=20000, SEED=7)
	$(BIN)/python -m examples.flights --failover --rows $(or $(ROWS),20000) --server-kills 10 $(if $(SEED),--seed $(SEED))

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

lock: .venv/.dev  ## pin the dependencies of pyproject.toml
	$(LOCK) pyproject.toml --group build --group dev -o requirements-dev.lock
	$(LOCK) pyproject.toml --group build -c requirements-dev.lock -o requirements.lock
	$(LOCK) --group postgresql -c requirements-dev.lock -o requirements-postgresql.lock
	$(LOCK) --no-deps --group demo -o requirements-demo.lock
	$(LOCK) --group audit -c requirements-dev.lock -o requirements-audit.lock
	$(LOCK) --group java -o requirements-java.lock

wheels: .venv/.run  ## build the three distributions into build/wheels: escrowmq, escrowmq-client, pytest-escrowmq
	rm -rf build/wheels
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheels . ./client ./pytest_escrowmq
	rm -rf build/lib build/bdist.* client/build pytest_escrowmq/build *.egg-info client/*.egg-info pytest_escrowmq/*.egg-info

clean:  ## remove what was built; ./data stays
	rm -rf .venv build client/build pytest_escrowmq/build *.egg-info client/*.egg-info pytest_escrowmq/*.egg-info .mypy_cache .ruff_cache .hypothesis
