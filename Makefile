# SPDX-License-Identifier: Apache-2.0
# make demo    from nothing to a traced NodePort on a real kernel
# make demo CLUSTER=1
#              two nodes on one wire: one request of a pod to a Service, traced on both with `kubectl k8snet-trace`
# make demo INCIDENT=3
#              one of five incidents (STATE=healthy: its healthy twin), with the tracer's output
# make test    lint, unit tests here; kernel tests in virtual machines: all on 6.12, those of the matrix on 6.1 and 5.10, with
#              THOROUGH=1 also on 7.2
# make unit, make lint
#              the parts of `make test` that need no virtual machine
# make kernel-test KERNELS=6.1 BESIDE=
#              all kernel tests on another kernel; THOROUGH=1: also those that take long
# make matrix  the tests of the matrix on Linux 5.10, 6.1, 6.12 and 7.2, one machine each, two at a time; writes docs/matrix.md
# make ground-truth KERNEL=6.12 BACKEND=legacy PACKETS=300
#              random rules and packets, rule by rule against the kernel's own trace
# make incidents KERNEL=6.12
#              five incidents, their healthy twins and ten variations of each, and situations of each mode of kube-proxy:
#              each must give its finding and no other. VARIATIONS=10 SEED=1; ONLY=3,5 or ONLY='two modes' for some of them
# make cures KERNEL=6.12
#              runs every check and every cure that a finding prints: the check must show the stated result, the cure must help
#              NATIVE=1: on this machine's own kernel, as root, in namespaces; ONLY=mtu for some of them
# make options KERNEL=6.12
#              the demonstration and all incidents with every option that changes the output must give the same findings;
#              recorded on a real kernel with each filter, read here with all options
#              ONLY='2 stuck' OPTIONS=drops-only for some of them
# make audit-truth KERNEL=6.12 NODES=200
#              the certain findings of `audit` and the answers of `explain`, on random nodes, compared with real requests;
#              NATIVE=1: on this machine's own kernel, as root, with iptables and nft; REAL=1: with rules of the real kube-proxy
#              and portmap, as for make real-proxy
# make real-proxy KERNEL=6.12
#              the real kube-proxy in each mode and the real portmap, with a test double as API server: the owner of each request,
#              the findings; REAL_PROXY=DIR has kube-proxy-VERSION.xz, without them it is skipped; ONLY=ipvs for some modes;
#              NATIVE=1: without probes, on this machine's own kernel, as root, with iptables, nft, ipset, ipvsadm and conntrack
# make policies KERNEL=6.12 SETS=40 SEED=1
#              random NetworkPolicies, written as Calico and kube-router write them, and random packets: outcome, policy and number
#              of the rule, compared with the kernel and with the meaning of the policies. ONLY=nftables for some writers; NATIVE=1:
#              real packets and predictions, without probes, on this machine's own kernel, as root, with iptables, nft and ipset
# make syns KERNEL=6.12
#              every possible end of a SYN, made on a real kernel: its cause line, compared with nstat and tcpdump
# make replay-check KERNEL=6.12
#              incidents and scenes recorded on a real kernel, and read here without root: the same output, byte for byte
# make questions KERNEL=6.12
#              traffic counted by its clients and rules, recorded on a real kernel: the saved queries have to give the same numbers
# make untouched KERNEL=6.12 WARM=1
#              an idle node before and after, compared byte for byte and by its counters; the tracer is killed at each point of its start
#              (WARM=1: a start with programs from the cache)
# make stress KERNEL=6.12
#              1,000 network namespaces, connections at full speed, full and closed output files, hostile rules
# make fuzz SECONDS=60 CASES=100000
#              a capture cut at every byte and damaged at random: its reader must not crash, and must report the damage; then hostile
#              captures with correct checksums, files of --objects and answers of the API: no crash, no hang, bounded memory
# make owners  the owner of each rule of many real nodes, compared with the API objects
# make fleet   captures of several nodes go to an S3 bucket; a finding is reconstructed from it alone, and the saved queries run on
#              DuckDB, Spark and ClickHouse: equal rows. Before: the tests of the store with its faulty S3 server and all engines. It
#              installs what it needs: pip packages, and Debian's Java for Spark
# make store-check KERNEL=6.12
#              the agent with a store, on a real kernel, ended and killed: its drops are there with their rules
# make report-check
#              exports, read by other programs: the HTML report in headless Chromium, pcapng by tshark and capinfos (Debian's
#              packages, which it installs; without them `make test` skips these tests)
# make metrics-check
#              the agent's metrics, read by the real Prometheus, and the alert rules, tested by promtool (Debian's package, which it
#              unpacks in build/, so that no service is started; without them `make test` skips these tests)
# make bench   the cost of tracing, with and without, in two virtual machines; writes bench/results.json and its table in
#              docs/performance.md; BENCH='--rounds 1 live': options of bench/run.py, and parts: BENCH='kernel scenes live throughput'
#              has all figures with goals
# make deb     the Debian package: dist/k8snet-trace_VERSION_all.deb; as root it installs what the build needs
# make deb-check
#              builds it, checks it with lintian, which it installs, installs and uses it in clean roots of Debian 12 and 13; as
#              root, without a virtual machine; SUITES=trixie for one of them
# make image-check
#              builds the container images, without and with a store, with buildah, and runs them; as root
# make joining-check JOINED_PACKETS=2000000
#              views of made packets on three nodes, joined and compared with the truth: none may be wrong, nor any packet that
#              is called lost (LOOKED_AT_PACKETS=200000)
# make cluster NODES_AND_KERNELS='a=6.12 b=6.1'
#              two or three kernels on one wire, traced by the real kubectl with `kubectl k8snet-trace`: joins and losses compared
#              with the wire's own log; then broken streams. CLUSTER='--lossy --seed 2': options of tests/cluster;
#              CLUSTER=--findings: only faults that several nodes together show, and their healthy twins
# make vagrant-check KERNEL=6.12
#              `vagrant up` without KVM, an incident found inside, `vagrant destroy`: nothing may be left behind

# KERNELS: all kernel tests run on these. BESIDE: only the tests of the matrix run on these, at the same time; both take about as long.
KERNELS ?= 6.12
BESIDE ?= 6.1 5.10 $(if $(THOROUGH),7.2)
DEMO_KERNEL ?= 6.12
# How the kernel tests attach probes: auto takes fentry where it can, kprobe never does; auto,kprobe: one after the other.
ATTACH ?= auto
KERNEL_TEST_SECONDS ?= 3600
MATRIX ?= 5.10 6.1 6.12 7.2
MATRIX_SECONDS ?= 2100
# Not empty: also the kernel tests that take long.
THOROUGH ?=
# make ground-truth: the kernel, the back end (a file of tests/kernel/truth), the number of packets, the seed of the random numbers.
KERNEL ?= 6.12
BACKEND ?= legacy
PACKETS ?= 300
SEED ?= 1
# make audit-truth: the number of random nodes; NATIVE not empty: on this machine's own kernel.
NODES ?= 200
NATIVE ?=
REAL ?=
# The directory with the real kube-proxy, compressed.
REAL_PROXY ?= ../shared/real/bin
# make policies: the number of random sets of policies.
SETS ?= 40
# The number of variations of each incident.
VARIATIONS ?= 10
SUITES ?= bookworm trixie
VENV := .venv
PYTHON := $(VENV)/bin/python
LAB := vagrant/lab/lab

.PHONY: demo test unit lint kernel-test ground-truth audit-truth real-proxy matrix vagrant-check incidents cures options policies syns \
	bench owners fleet joining-check cluster metrics-check report-check replay-check questions fuzz untouched stress store-check deb deb-check image-check setup clean

demo: setup
	@$(if $(CLUSTER),$(PYTHON) -u -m tests.cluster.demo $(DEMO_KERNEL),$(LAB) run --kernel $(DEMO_KERNEL) -- python3 $(if $(INCIDENT),vagrant/incidents/demo.py $(INCIDENT) $(STATE),vagrant/scenes/demo.py))

test: lint unit kernel-test

unit: setup
	$(PYTHON) -m pytest -n auto --dist loadfile

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

# One machine for each kernel, two at a time: each keeps little more than one processor busy. Its output is shown when it has ended.
comma := ,
MACHINES := $(MAKE) --no-print-directory --output-sync=target --keep-going -j 2
ONCE_MORE := python3 -u tests/kernel/once_more.py --matrix build/matrix
PYTEST_OPTIONS := -p no:cacheprovider -W ignore::DeprecationWarning:bcc --durations=15
MATRIX_TABLE := $(PYTHON) -m tests.support.matrix_table build/matrix

kernel-test: setup
	@rm -rf build/matrix
	@$(MACHINES) $(addprefix kernel-test-,$(KERNELS)) $(addprefix matrix-,$(BESIDE)); status=$$?; \
		$(MATRIX_TABLE) build/matrix.md $(KERNELS) $(BESIDE) && exit $$status

# A machine that dies (status 125) is started once more; the tests that ended are not repeated. See vagrant/README.md, "Traps".
define kernel_tests
	@echo "--- kernel $*$(3)"
	@rm -f build/matrix/$*.json
	@tests() { $(LAB) run --kernel $* --timeout $(1) -- $(2) $(ONCE_MORE)/$*.json $(PYTEST_OPTIONS); }; \
		tests || { [ $$? -eq 125 ] && echo "--- kernel $*: the machine died: it is started once more" && tests; }
endef

kernel-test-%: PYTEST_OPTIONS += tests/kernel
kernel-test-%: setup
	$(call kernel_tests,$(KERNEL_TEST_SECONDS),env K8SNET_ATTACH=$(ATTACH) K8SNET_THOROUGH=$(THOROUGH))

# The table has the results of each kernel, also of one that failed.
matrix: setup
	@rm -rf build/matrix
	@$(MACHINES) $(addprefix matrix-,$(MATRIX)) || true
	@$(MATRIX_TABLE) docs/matrix.md $(MATRIX)

matrix-%: PYTEST_OPTIONS += -m matrix tests/kernel
matrix-%: setup
	$(call kernel_tests,$(MATRIX_SECONDS),,$(comma) the matrix)

vagrant-check:
	@vagrant/check $(KERNEL)

ground-truth: setup
	@$(LAB) run --kernel $(KERNEL) --timeout 2400 -- python3 -W ignore tests/kernel/ground_truth.py \
		--backend $(BACKEND) --packets $(PACKETS) --seed $(SEED)

audit-truth: setup
	@$(if $(REAL),$(PYTHON) -m tests.support.real_proxy '$(REAL_PROXY)' || exit 0;) \
		$(if $(NATIVE),,$(LAB) run --kernel $(KERNEL) --timeout 7200 --) $(if $(NATIVE),$(PYTHON),python3) -W ignore \
		tests/kernel/audit_truth.py --nodes $(NODES) --seed $(SEED) $(if $(NATIVE),,--timeout 2) $(if $(REAL),--real)

real-proxy: setup
	@if $(PYTHON) -m tests.support.real_proxy '$(REAL_PROXY)'; then \
		$(if $(NATIVE),,$(LAB) run --kernel $(KERNEL) --timeout 3600 --) $(if $(NATIVE),$(PYTHON),python3) -u -W ignore \
			tests/kernel/all_real_proxy.py $(if $(ONLY),--only $(ONLY)) $(if $(NATIVE),--native); fi

cures: setup
	@$(PYTHON) -m tests.support.real_proxy '$(REAL_PROXY)' || true
	@$(if $(NATIVE),,$(LAB) run --kernel $(KERNEL) --timeout 1800 --) $(if $(NATIVE),$(PYTHON),python3) -W ignore \
		tests/kernel/all_cures.py --only '$(ONLY)' $(if $(NATIVE),,--machine)

incidents: setup
	@$(LAB) run --kernel $(KERNEL) --timeout 3600 -- python3 -W ignore tests/kernel/all_incidents.py \
		--variations $(VARIATIONS) --seed $(SEED) --only '$(ONLY)'

policies: setup
	@$(if $(NATIVE),,$(LAB) run --kernel $(KERNEL) --timeout 2400 --) $(if $(NATIVE),$(PYTHON),python3) -u -W ignore \
		tests/kernel/all_policies.py --sets $(SETS) --seed $(SEED) --only '$(ONLY)' $(if $(NATIVE),--native)

options: setup
	@rm -rf build/options
	@$(LAB) run --kernel $(KERNEL) --timeout 7200 -- python3 -W ignore tests/kernel/all_options.py build/options --only '$(ONLY)'
	@$(PYTHON) -m tests.support.options_check build/options --options '$(OPTIONS)'

syns: setup
	@$(LAB) run --kernel $(KERNEL) --timeout 1200 -- python3 -W ignore tests/kernel/all_syns.py

untouched: setup
	@$(LAB) run --kernel $(KERNEL) --timeout 1500 -- python3 -u -W ignore tests/kernel/all_kills.py $(if $(WARM),--warm)

stress: setup
	@$(LAB) run --kernel $(KERNEL) --timeout 3000 -- python3 -u -W ignore tests/kernel/all_stress.py

replay-check: setup
	@rm -rf build/replay
	@$(LAB) run --kernel $(KERNEL) --timeout 2400 -- python3 -W ignore tests/kernel/record_all.py build/replay
	@$(PYTHON) -m tests.support.replay_check build/replay

questions: setup
	@rm -rf build/questions
	@$(LAB) run --kernel $(KERNEL) --timeout 900 -- python3 -W ignore tests/kernel/record_questions.py build/questions
	@$(PYTHON) -m tests.support.questions_check build/questions

BENCH ?=
SECONDS ?= 60
CASES ?= 100000
fuzz: setup
	@$(PYTHON) -m tests.fuzz.damaged_captures --seconds $(SECONDS) --seed $(SEED)
	@$(PYTHON) -m tests.fuzz --cases $(CASES) --seed $(SEED)

# What the tracer needs on a node: starts are measured natively with the distribution's Python.
bench: setup
	@sh vagrant/setup.sh $(VENV) python3-bpfcc python3-click python3-numpy python3-pyroute2 python3-rich python3-yaml
	$(PYTHON) -m bench.run $(BENCH)

JOINED_PACKETS ?= 2000000
LOOKED_AT_PACKETS ?= 200000
joining-check: setup
	@$(PYTHON) -m tests.support.joining_check PACKETS=$(JOINED_PACKETS) SEED=$(SEED)
	@$(PYTHON) -m tests.support.lost_check PACKETS=$(LOOKED_AT_PACKETS) SEED=$(SEED)

NODES_AND_KERNELS ?= a=6.12 b=6.1
CLUSTER ?=
cluster: setup
	@$(PYTHON) -u -m tests.cluster $(NODES_AND_KERNELS) --seed $(SEED) $(CLUSTER)

owners: setup
	@$(PYTHON) -m tests.support.check_owners

FLEET := $(VENV)/fleet-ready
fleet: setup $(FLEET)
	@command -v java >/dev/null || { $(if $(filter 0,$(shell id -u)),,sudo) apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		$(if $(filter 0,$(shell id -u)),,sudo) apt-get install -y -qq --no-install-recommends default-jre-headless >/dev/null; }
	@$(PYTHON) -m pytest -q tests/unit/store
	@$(PYTHON) -m tests.support.fleet_check

# pyarrow for the Python of the machine, which is not the one here. Not a package of Debian.
GUEST_PYTHON ?= 3.13
GUEST_LIBRARIES := build/guest-python-$(GUEST_PYTHON)
store-check: setup
	@[ -d $(GUEST_LIBRARIES) ] || $(PYTHON) -m pip install -qq --disable-pip-version-check --no-deps --only-binary=:all: \
		--python-version $(GUEST_PYTHON) --platform manylinux_2_28_$(shell uname -m) --target $(GUEST_LIBRARIES) pyarrow
	@$(LAB) run --kernel $(KERNEL) --timeout 1500 -- env PYTHONPATH=$(GUEST_LIBRARIES) python3 -m pytest -s $(PYTEST_OPTIONS) \
		tests/kernel/test_store.py

$(FLEET): .venv/ready pyproject.toml
	@$(PYTHON) -m pip install -qqq --disable-pip-version-check -e '.[fleet]'
	@touch $@

deb:
	@package/deb

deb-check:
	@command -v lintian >/dev/null || [ "$$(id -u)" != 0 ] || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends lintian >/dev/null; }
	@deb=$$(package/deb) && package/deb_check "$$deb" $(SUITES)

image-check:
	@deploy/check

report-check: setup
	@for each in chromium tshark; do command -v $$each >/dev/null || missing="$$missing $$each"; done; [ -z "$$missing" ] || \
		{ $(if $(filter 0,$(shell id -u)),,sudo) apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
		$(if $(filter 0,$(shell id -u)),,sudo) apt-get install -y -qq --no-install-recommends $$missing >/dev/null; }
	$(PYTHON) -m pytest -rs tests/unit/export

# Unpacked, not installed: the package would start a server.
PROMETHEUS := $(CURDIR)/build/prometheus
metrics-check: setup
	@command -v promtool >/dev/null || [ -x $(PROMETHEUS)/usr/bin/promtool ] || { mkdir -p $(PROMETHEUS) && cd $(PROMETHEUS) && \
		{ apt-get download -qq prometheus 2>/dev/null || { $(if $(filter 0,$(shell id -u)),,sudo) apt-get update -qq && \
		apt-get download -qq prometheus; } } && dpkg -x prometheus_*.deb . && rm prometheus_*.deb; }
	PATH="$(PROMETHEUS)/usr/bin:$$PATH" $(PYTHON) -m pytest -rs tests/unit/metrics tests/repository/test_metrics_page.py

# Installs packages to build and boot the lab, and a virtual environment for the tools.
setup: .venv/ready
.venv/ready: vagrant/setup.sh pyproject.toml
	@sh vagrant/setup.sh $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
