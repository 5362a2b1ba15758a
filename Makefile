# Four commands matter: `make demo`, `make quick`, `make test` and `make wheel`. Each sets up what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find crates -name '*.rs' -o -name Cargo.toml)
JAR := python/quire/spark/quire-spark.jar
JAR_SOURCES := $(shell find crates/quire-jvm -name '*.java' -o -name '*.py')

# Python keeps its bytecode, whatever the environment says: otherwise each of the thousands of processes of the tests compiles the package.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup engine demo bench test quick check rust-test python-test spark-test spark-kills bench-build instructions sim model fuzz fuzz-readers crash churn peers docs browser wheel clean

setup: $(STAMP)

# Two parts at a time: most of them leave a processor idle now and then. The output of a part comes
# when it ends.
PAIRS := $(if $(filter output-sync,$(.FEATURES)),--jobs 2 --output-sync=target)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/bin/maturin: | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet 'maturin>=1.16,<2'

# The extension and the jar for Spark are rebuilt whenever a source is newer than the begin of the last install: it may have been
# changed while the install ran.
$(STAMP): $(VENV)/bin/maturin pyproject.toml $(RUST_SOURCES) $(JAR_SOURCES)
	touch $(VENV)/.started
	@$(MAKE) --no-print-directory $(PAIRS) engine $(VENV)/.dependencies
	@$(MAKE) --no-print-directory $(VENV)/.packages
	$(BIN)/python crates/quire-jvm/build_jar.py target/editable $(JAR)
	mv $(VENV)/.started $@

# The library for the JVM is built with the features of the extension, which `--package quire-python`
# selects: it has nothing left to compile. Alone, the library has fewer features of `syn`, which the
# macros of most crates use, and cargo compiles nearly every crate a second time.
engine: $(VENV)/bin/maturin
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --quiet --skip-install --profile editable --locked
	PYO3_CONFIG_FILE="$$(ls $(CURDIR)/target/maturin/pyo3-config-*.txt)" \
		cargo build --quiet --profile editable --locked --package quire-python --package quire-jvm --lib

# What the package needs, but not the package: pip would build it beside `engine`, and two builds at
# a time take the library of one another away.
$(VENV)/.dependencies: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; extras = project["optional-dependencies"]; \
		print(*project["dependencies"], *(need for extra in ("demo", "spark", "testing", "dev") for need in extras[extra] if not need.startswith("quire-mq")), sep="\n")' > $@.txt
	$(BIN)/python -m pip install --quiet --requirement $@.txt
	mv $@.txt $@

$(VENV)/.packages: $(VENV)/.dependencies $(VENV)/bin/maturin Cargo.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/quire demo

test: setup
	@echo 'make test: two parts at a time; the output of a part comes when it ends, the first after minutes'
	@$(MAKE) --no-print-directory $(PAIRS) check docs spark-test rust-test python-test bench-build instructions sim

# The checks and tests of what changed since the main branch, or of one part: `make quick CRATE=quire-queue`.
quick:
	@$(PYTHON) tests/quick.py $(if $(CRATE),--crate $(CRATE))

check: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	$(BIN)/ruff format --check python tests benches examples
	$(BIN)/ruff check python tests benches examples
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright --verifytypes quire --ignoreexternal > target/types.txt || { cat target/types.txt; exit 1; }
	$(BIN)/stubtest quire._quire --allowlist tests/stubtest-allowlist.txt

# The cases are the same every time, here and in the Python tests: a red run is the doing of the change. Plain `cargo test` and `pytest` draw
# new ones, and so does `make fuzz`.
rust-test: export PROPTEST_RNG_SEED ?= 1
# Temporary files of the tests, those of a run that was killed included. What the tests leave there is listed and removed.
rust-test: export TMPDIR := $(CURDIR)/target/temporary
# All packages, as the linter, the benches and the counter of instructions have them: the same
# features of each dependency, so it is compiled once.
rust-test:
	rm -rf $(TMPDIR)
	mkdir -p $(TMPDIR)
	cargo test --locked --workspace --tests
	@find $(TMPDIR) -mindepth 1 -printf 'left by the tests: %P\n'
	rm -rf $(TMPDIR)

# As the tests are built: that they link and start is what is shown, not how fast they are.
bench-build:
	cargo build --workspace --bench '*' --locked

# What a message costs on each hot path, whatever else the machine does: benches/tests/instructions.rs.
instructions:
	cargo test --workspace --test instructions --locked

# Of the Python surface; `cargo bench --package quire-benches` has those of the parts, `benches/end_to_end.py` those of the whole.
bench: setup
	$(BIN)/python -m pytest -q benches/test_bench_*.py -p no:xdist --benchmark-columns min,median,rounds --benchmark-max-time 0.3 --benchmark-min-rounds 3

# With the features of the extension, which has compiled most of it.
sim:
	cargo build --profile editable --locked --package quire-python --package quire-sim --bin quire-sim
	target/editable/quire-sim --seeds $(or $(SEEDS),100)
	cargo test --profile editable --locked --package quire-python --package quire-sim --lib

# Every state of bounded systems of several instances, the larger ones included: docs/internals/copies.md. It needs minutes and gigabytes.
model:
	cargo test --locked --package quire-model --test copies -- --include-ignored --nocapture --test-threads 1

# Any bytes for every decoder, a line each:
#
#   segments, compressed ones, index, clients.ack, queues.ack, archive.place, states of queues; bookmarks and times as text
#   queues that were created at run time
#   frames of both directions; message types and filters; changes, leases and snapshots of queues; snapshots of last-value topics; commands and their options
#   what a server sends to a client
#   stores of publishes and of bookmarks
#   values of messages as columns of Arrow; options, reads and tasks of Spark
#   rows of CSV; bookmarks, times and ranges as text; requests for the care of journal files and their answers (Python)
#
# The names of such tests begin with `any_`. A bounded number of cases is part of `make test`, and so is the configuration. The stores are
# files: with TMPDIR in memory (/dev/shm) a million of them take minutes, on a disk hours. The last line is a hundredth: an input takes Python milliseconds.
fuzz: export QUIRE_FUZZ_CASES = $(or $(CASES),1000000)
fuzz: export PROPTEST_CASES = $(or $(CASES),1000000)
fuzz: setup
	cargo test --profile editable --locked --package quire-journal --lib --test journal any_bytes
	cargo test --profile editable --locked --package quire-wire --package quire-expression --package quire-queue --package quire-table --package quire-broker --package quire-client \
		--test wire --test link --test filter --test write --test variant --test corpus --test queue --test table --test broker --test client -- any_
	cargo test --profile editable --locked --package quire-broker --package quire-link --lib any_bytes
	cargo test --profile editable --locked --package quire-link --test summary any_bytes
	cargo test --profile editable --locked --package quire-driver --test stores any_bytes
	cargo test --profile editable --locked --package quire-arrow --test any_values
	cargo test --profile editable --locked --package quire-spark --test any_texts
	QUIRE_FUZZ_CASES=$(or $(CASES),10000) $(BIN)/python -m pytest -q -n auto --timeout 0 tests/test_any_bytes.py
	$(MAKE) --no-print-directory fuzz-readers RUNS=$(or $(CASES),1000000)

# Guided by coverage, one reader of messages after the other: RUNS inputs each, or those of READERS only. It needs a compiler for C++. What
# reached new code is kept in target/fuzz/corpus, and a later run continues there. An input that fails is in target/fuzz.
READERS := json msgpack bson xml fix nvfix binary
FUZZ_HOST := $(shell rustc --print host-tuple)
FUZZ_BINARY := target/fuzz/$(FUZZ_HOST)/release/quire-fuzz
FUZZ_FLAGS := -Cpasses=sancov-module $(addprefix -Cllvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares)
fuzz-readers:
	RUSTFLAGS='$(FUZZ_FLAGS)' cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml --target $(FUZZ_HOST) --target-dir target/fuzz
	for reader in $(READERS); do \
		export QUIRE_READER=$$reader; \
		SEEDS=target/fuzz/corpus/$$reader $(FUZZ_BINARY) && $(FUZZ_BINARY) target/fuzz/corpus/$$reader -runs=$(or $(RUNS),1000000) \
			-max_len=512 -artifact_prefix=target/fuzz/$$reader- -print_final_stats=1 -verbosity=0 || exit 1; \
	done

python-test: setup
	$(BIN)/python -m pytest -n auto -q tests --ignore tests/spark --hypothesis-profile ci
	$(BIN)/python -m pytest -q benches/test_bench_*.py --benchmark-disable

# One after the other: they share one SparkSession, which takes longer to start than most of them. Spark gives a Python process 10 s to
# start, which no setting changes. A machine with much other work can need longer, so such a test gets another try.
spark-test: setup
	$(BIN)/python -m pytest -q tests/spark --reruns 3 --only-rerun 'Python worker failed to connect back'

# Drivers and workers of a copying query are killed again and again; two rounds are part of `make test`.
spark-kills: setup
	$(BIN)/python tests/spark/kills.py $(or $(ROUNDS),50)

# Processes are killed with `kill -9` at random moments, and what they left is compared. KIND is what is killed: `server` (while clients
# publish), `client` (with stores in files, and its server), `queue` (its server or workers), `link` (instances that replicate, which are also
# stopped and parted), `table` (the server of a last-value topic, or a program with tables), `action` (a server with actions), `protocol` (server,
# client or connection beside any frame). A bounded number of rounds of each is part of `make test`. `make crash KIND=queue ROUNDS=200 SEED=7`.
crash: setup
	$(BIN)/python tests/$(or $(KIND),server)_crashes.py $(ROUNDS) $(if $(SEED),--seed $(SEED))

# Connections come and go beside honest clients; a few hundred of them are part of `make test`. LATE_MAX is in seconds.
churn: setup
	$(BIN)/python tests/churn.py $(or $(MINUTES),20) $(if $(LATE_MAX),--late-max $(LATE_MAX))

# Compared with NATS, Redis, RabbitMQ, Kafka and PostgreSQL, as far as they are installed: docs/internals/benchmarks.md says how.
peers: setup
	$(BIN)/python -m pip install --quiet --editable '.[dev,peers]'
	$(BIN)/python -m benches.peers $(PEERS)

# The site, in target/site. A link that leads nowhere fails it. ruff breaks long signatures into lines.
# What the tests of the console need besides Chromium.
browser:
	npm install --silent --no-save --prefix tests axe-core@4.14.1

docs: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet 'mkdocs>=1.6,<2' 'mkdocs-material>=9.7,<10' 'mkdocstrings-python>=2,<3' 'ruff>=0.14'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

# A wheel for Python 3.11 and newer, and for Linux with glibc 2.17 and newer: zig links against the symbols of that version. Elsewhere: `make
# wheel WHEEL_OPTIONS=`. The wheel is installed into an empty environment and tried there. The jar for Spark is in it: javac and PySpark compile
# its classes, and its library is built as the extension is.
WHEEL_OPTIONS ?= --zig --compatibility manylinux2014
WHEEL_TARGET := $(shell rustc --print host-tuple)
wheel: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet 'maturin[zig]>=1.16,<2' 'cargo-zigbuild>=0.20' 'pyspark>=4.2,<5'
	rm -rf dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(if $(findstring --zig,$(WHEEL_OPTIONS)),cargo-zigbuild,cargo) rustc --release --locked --package quire-jvm --lib \
		--target $(WHEEL_TARGET)$(if $(findstring --zig,$(WHEEL_OPTIONS)),.2.17) -- -C strip=symbols
	$(BIN)/python crates/quire-jvm/build_jar.py target/$(WHEEL_TARGET)/release $(JAR)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/maturin build --release --locked --out dist $(WHEEL_OPTIONS)
	$(BIN)/python tests/wheel.py dist/*.whl

clean:
	rm -rf target $(VENV) dist
