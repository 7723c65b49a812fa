# imagepin: build, test and demo. `make help` lists the targets.
GO          ?= go
CONTAINERD   = $(shell $(GO) list -m -f '{{.Version}}' github.com/containerd/containerd/v2)
CTD_VERSION  = github.com/containerd/containerd/v2/version
LDFLAGS      = -s -w -X $(CTD_VERSION).Version=$(CONTAINERD)+imagepin
GOBUILD      = $(GO) build -ldflags '$(LDFLAGS)'
OURS         = ./api/... ./cmd/... ./internal/... ./pkg/... ./plugins/... ./version
MODULES      = . cmd/kubectl-imagepin integration integration/lazy integration/kubelet integration/kubelet/binaries \
               integration/kubelet/registry integration/kubelet/schemas integration/kubelet/versions/1.34 \
               integration/kubelet/versions/1.36 integration/lock/tools integration/bundle/tools packaging integration/packages \
               integration/peers/binaries integration/builders/binaries integration/versions/2.2/plugin \
               integration/versions/2.3/plugin tools
KUBELETS     = $(sort $(notdir $(wildcard integration/kubelet/versions/*)))
SKOPEO_TAGS  = containers_image_openpgp,exclude_graphdriver_btrfs
# The stages of make test, and the integration tests of both modes. What takes longest is first, so that nothing waits for it
# at the end.
ALL          = test-integration test-kubelet test-serve test-packages test-cluster test-power test-unit test-race test-lazy \
               test-versions test-peers test-sim check-bench
ifdef SHORT
PLANNED      = test-integration test-serve test-unit test-sim
SUBJECTS     = ./pins ./stock ./restart ./security
else
PLANNED      = $(ALL)
SUBJECTS     = ./crash ./repair ./apply ./pins ./pull ./remove ./restart ./builders ./security ./stock ./observe ./install
OTHERS       = $$($(GO) list ./... | grep -v -e /versions -e /power -e '/peers$$' -e '/integration/serve$$')
endif
STAGES       = $(filter-out $(WITHOUT),$(PLANNED))
BIN          = bin
# Binaries, tests and checks use the same flags, so that each package is compiled once. The race detector needs cgo.
export CGO_ENABLED = 0
export GOFLAGS := $(GOFLAGS) -trimpath
# check-vet has vetted the tests. Without this, each stage vets all dependencies again, also those with the race detector.
# testlog prints a line for each package, and the output of what fails.
TESTLOG      = $(CURDIR)/bin/testlog
TEST         = $(TESTLOG) test $@ -- $(GO) test -vet=off
RACE         = $(if $(SHORT),$(TEST),CGO_ENABLED=1 $(TEST) -race)
# With TIMES=FILE, each command's target, seconds, and processor seconds (user, system) are added to this file.
ifdef IMAGEPIN_TESTLOG
# In make test, commands report to it.
SHELL        = $(TESTLOG)
.SHELLFLAGS  = shell '$@' $(if $(TIMES),$(CURDIR)/hack/timed-shell.sh '$(TIMES)' '$(filter-out ended-%,$@)',/bin/sh) -c
else ifdef TIMES
SHELL        = $(CURDIR)/hack/timed-shell.sh
.SHELLFLAGS  = '$(TIMES)' '$@' -c
endif

# What these stages write is in memory if the machine has enough.
test-unit test-integration test-serve test-power test-race test-versions test-sim test-peers: private export TMPDIR = $(shell hack/test-directory.sh)
# Daemons and tests collect garbage less often, which takes a tenth of their processor time. bench and demo do not.
test-unit test-integration test-serve test-power test-race test-versions test-sim test-peers test-lazy test-kubelet test-kubelets test-cluster test-packages \
	check-bench: private export GOGC = 400

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 20

.PHONY: build
build: ## bin/containerd (with imagepin), bin/imagepin, bin/ctr, bin/containerd-shim-runc-v2
	$(GOBUILD) -o $(BIN)/containerd ./cmd/containerd
	$(GOBUILD) -o $(BIN)/imagepin ./cmd/imagepin
	$(GOBUILD) -o $(BIN)/ctr github.com/containerd/containerd/v2/cmd/ctr
	$(GOBUILD) -o $(BIN)/containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2

.PHONY: kubectl-imagepin
kubectl-imagepin: ## bin/kubectl-imagepin, the kubectl plugin
	cd cmd/kubectl-imagepin && $(GO) build -ldflags '-s -w' -o $(abspath $(BIN))/ .

.PHONY: test-binaries
test-binaries: | build ## bin/containerd-stock, bin/containerd-core, bin/imagepin-core and bin/runc, for the tests and the demo
	GO=$(GO) hack/test-binaries.sh

.PHONY: crash-binaries
crash-binaries: | build ## bin/containerd-failpoints and bin/imagepin-failpoints, which tests can kill at failpoints
	GO=$(GO) hack/test-binaries.sh crash

.PHONY: race-binaries
race-binaries: | test-binaries
	GO=$(GO) hack/test-binaries.sh race

# The first run compiles for minutes, and keeps the binaries in the user's cache.
.PHONY: kubernetes-binaries
kubernetes-binaries: | build ## bin/kubernetes/: kubelet, API server, etcd, kubectl, the controllers, the scheduler and a registry
	GO=$(GO) hack/kubernetes-binaries.sh

.PHONY: kubelet-binaries
kubelet-binaries: | build
	GO=$(GO) hack/kubernetes-binaries.sh $(KUBELETS)

.PHONY: lazy-binaries
lazy-binaries: | build
	GO=$(GO) hack/lazy-binaries.sh

# The first run downloads packages of Debian and compiles for minutes, and keeps all of it in the user's cache.
.PHONY: peer-binaries
peer-binaries: | build
	GO=$(GO) hack/peer-binaries.sh

.PHONY: inotify
inotify:
	hack/inotify.sh

.PHONY: version-binaries
version-binaries: | build
	GO=$(GO) hack/containerd-versions.sh

# What tests need from other Debian suites, and oras. The first run downloads it into the user's cache.
.PHONY: downloads
downloads: decompressors
	hack/erofs-utils.sh
	hack/prometheus.sh
	hack/debian-containerd.sh
	GO=$(GO) hack/builders.sh

.PHONY: decompressors
decompressors:
	hack/decompressors.sh

# The Debian with systemd, and dnf, for test-packages. The first run takes minutes, which are mostly apt's and dpkg's.
.PHONY: debian-roots
debian-roots: | downloads
	hack/debian-root.sh
	hack/dnf-root.sh

# Packages are reproducible: one commit and one version of Go result in the same bytes on every machine.
DIST              = dist
ARCHS             = amd64 arm64
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
REPRODUCIBLE      = GOFLAGS='-mod=readonly -buildvcs=false' GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0

.PHONY: man
man: ## The man pages of imagepin, in dist/man/
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) run ./cmd/imagepin help --man-dir $(DIST)/man

.PHONY: packages
packages: ## deb, rpm and tar.gz for amd64 and arm64, with checksums and a bill of materials, in dist/
	rm -rf $(DIST)
	mkdir -p $(DIST)/.stage/completions
	@set -e; for arch in $(ARCHS); do $(REPRODUCIBLE) GOOS=linux GOARCH=$$arch $(MAKE) --no-print-directory build BIN=$(DIST)/.stage/$$arch; done
	SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) run ./cmd/imagepin help --man-dir $(DIST)/.stage/man
	$(GO) run ./cmd/imagepin completion bash >$(DIST)/.stage/completions/imagepin
	$(GO) run ./cmd/imagepin completion zsh >$(DIST)/.stage/completions/_imagepin
	$(GO) run ./cmd/imagepin completion fish >$(DIST)/.stage/completions/imagepin.fish
	version=$$($(GO) run ./cmd/imagepin --version | sed 's/.* //') && dist=$$(realpath $(DIST)) && cd packaging && \
		SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) run . -version $$version -stage $$dist/.stage -out $$dist $(ARCHS)
	rm -rf $(DIST)/.stage

ifneq ($(filter test-builds,$(MAKECMDGOALS)),)
packages: | build
endif
ifneq ($(filter test-stages,$(MAKECMDGOALS)),)
test-cluster: | $(filter test-kubelet,$(STAGES))
endif

# The first run compiles the plugin and its dependencies for each platform, which takes minutes.
PLUGIN_PLATFORMS = linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

.PHONY: plugin
plugin: ## Archives of the kubectl plugin for Linux, macOS and Windows, and its manifest for krew, in dist/plugin/
	rm -rf $(DIST)/plugin $(DIST)/.plugin
	@set -e; for p in $(PLUGIN_PLATFORMS); do $(REPRODUCIBLE) GOOS=$${p%/*} GOARCH=$${p#*/} \
		$(MAKE) --no-print-directory kubectl-imagepin BIN=$(DIST)/.plugin/$${p%/*}-$${p#*/}; done
	version=$$($(GO) run ./cmd/imagepin --version | sed 's/.* //') && dist=$$(realpath $(DIST)) && cd packaging && \
		SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) run ./plugin -version $$version -stage $$dist/.plugin -out $$dist/plugin $(PLUGIN_PLATFORMS)
	rm -rf $(DIST)/.plugin

.PHONY: image
image: packages ## The node image for amd64 and arm64, in dist/image/; PUSH=registry.example.com/imagepin/node:TAG pushes it
	version=$$($(GO) run ./cmd/imagepin --version | sed 's/.* //') && dist=$$(realpath $(DIST)) && cd packaging && \
		SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(GO) run ./image -version $$version -dist $$dist -out $$dist/image $(if $(PUSH),-push '$(PUSH)') amd64 arm64

.PHONY: repositories
repositories: packages ## An APT and an rpm repository with the packages, in dist/repository/
	dist=$$(realpath $(DIST)) && cd packaging && SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) \
		$(GO) run ./repository -out $$dist/repository $$dist/*.deb $$dist/*.rpm

# BUILDER is the URI of who builds, for the provenance. GPG_KEY signs the checksums and the repositories.
RELEASE = $(GO) run ./release -version '$(VERSION)' -built "$$($(GO) run -C .. ./cmd/imagepin --version | sed 's/.* //')" -commit $(COMMIT)

.PHONY: release
release: COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
release: ## All files of a release, with checksums and provenance, in dist/release/ (VERSION=v1.2.3)
	cd packaging && $(RELEASE) -check
	@$(MAKE) --no-print-directory repositories image plugin
	dist=$$(realpath $(DIST)) && cd packaging && $(RELEASE) $(if $(BUILDER),-builder '$(BUILDER)') $$dist
	$(if $(GPG_KEY),hack/sign-release.sh $(DIST) '$(GPG_KEY)')

.PHONY: licenses
licenses: ## Write docs/licenses.md: the licenses of the modules in the binaries
	cd packaging && $(GO) run ./licenses ../docs/licenses.md

.PHONY: check-licenses
check-licenses:
	cd packaging && $(GO) run ./licenses -check ../docs/licenses.md

.PHONY: vulncheck
vulncheck: ## Check the modules in the binaries for known vulnerabilities (needs https://vuln.go.dev)
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.1.4 $(OURS)

.PHONY: demo
demo: build test-binaries ## Run the demo with its own registry and containerd
	@cd integration && $(GO) build -o ../bin/demo ./demo && exec ../bin/demo

.PHONY: demo-stock
demo-stock: build test-binaries ## Run the demo on stock containerd: shows where it fails
	@cd integration && $(GO) build -o ../bin/demo ./demo && exec ../bin/demo -stock

.PHONY: demo-edge
demo-edge: build test-binaries crash-binaries ## Run the demo of bundles: a node without a registry, a power loss in an update, and a rollback
	@cd integration && $(GO) build -o ../bin/demo-edge ./demo/edge && exec ../bin/demo-edge

.PHONY: pictures
pictures: build test-binaries ## Record both demos and draw docs/pictures/
	@cd integration && $(GO) build -o ../bin/demo ./demo && $(GO) run ./pictures

.PHONY: demo-cluster
demo-cluster: build kubectl-imagepin test-binaries kubernetes-binaries ## Run the demo of ImagePins: three nodes, without and with imagepin
	@cd integration/kubelet && $(GO) build -o ../../bin/demo-cluster ./demo && exec ../../bin/demo-cluster

# All is built before the stages: make begins a stage that has to wait for a build only after it has begun all others, and
# the one that takes longest would be the last one.
needs  = $(if $(filter $(1),$(STAGES)),$(2))
BUILDS = $(call needs,test-integration test-serve test-power test-versions test-peers test-packages,downloads) \
         $(call needs,test-unit,decompressors) $(call needs,test-integration test-serve test-kubelet test-cluster,inotify) \
         $(if $(filter-out test-unit test-sim check-bench,$(STAGES)),build test-binaries) \
         $(call needs,test-integration test-serve test-race test-cluster,crash-binaries) \
         $(call needs,test-kubelet test-cluster,kubernetes-binaries) \
         $(call needs,test-packages,debian-roots repositories) $(call needs,test-cluster,kubectl-imagepin image) \
         $(call needs,test-kubelet test-lazy,lazy-binaries) $(call needs,test-race,race-binaries) \
         $(call needs,test-versions,version-binaries) $(call needs,test-peers,peer-binaries)

# The stages mostly wait for containerd and kubelet, so three run at a time.
.PHONY: test
test: | $(TESTLOG) ## All tests; WITHOUT='STAGE...' leaves out stages, SHORT=1 runs unit tests, some of both modes, and the simulator
	@$(TESTLOG) needs -stages '$(PLANNED)' -without '$(WITHOUT)'
	@$(TESTLOG) run -stages '$(PLANNED)' -without '$(WITHOUT)' -- $(MAKE) --no-print-directory -s -j3 test-builds \
		-- $(MAKE) --no-print-directory -s -j3 $(addprefix -o ,$(TESTLOG) packages $(BUILDS)) PEERS=$(or $(PEERS),image) test-stages

.PHONY: test-builds
test-builds: $(BUILDS)

.PHONY: test-stages
test-stages: $(addprefix ended-,$(STAGES))

ended-%: %
	@$(TESTLOG) end $*

$(ALL) test-kubelets soak soak-power soak-cluster: | $(TESTLOG)

$(TESTLOG): $(wildcard tools/testlog/*.go)
	cd tools && $(GO) build -o $@ ./testlog

# These measure memory, or damage a file at each position. With the race detector they need many times as much, and other tests
# run the same code with it. internal/gunzip starts no goroutine.
PLAIN = ^TestMemoryOf|^TestMemoryDoes|^TestFleetLock|^TestEachTruncation|^TestEachFlippedBit

.PHONY: test-unit
test-unit: decompressors ## Unit tests with the race detector (SHORT=1: without)
	$(RACE) -short -skip '$(PLAIN)' $$($(GO) list $(OURS) | grep -v /internal/gunzip$$)
	IMAGEPIN_DECOMPRESSORS=$(abspath $(BIN))/decompressors $(TEST) ./internal/gunzip
	$(TEST) -run '$(PLAIN)' ./pkg/imagepin/bundle ./pkg/imagepin/lock ./pkg/imagepin/apply
	cd cmd/kubectl-imagepin && $(TEST) ./...
	cd packaging && $(TEST) ./image ./plugin ./release ./internal/...
	cd tools && $(TEST) ./testlog/...

.PHONY: test-sim
test-sim: ## Run simulated histories for a minute (SIM_TIME)
	IMAGEPIN_SIM_TIME=$(or $(SIM_TIME),60s) $(TEST) -count 1 -v -run TestHistories ./internal/sim

.PHONY: check-bench
check-bench: ## Run each Go benchmark once
	$(TEST) -short -run '^$$' -bench . -benchtime 1x $$(git grep -l '^func Benchmark' pkg internal | xargs -n1 dirname | sort -u | sed 's|^|./|')

# This takes up to 23 minutes. BENCH='-run REGEXP', '-n REPETITIONS' or '-quick' runs less. BENCH=-help lists all
# options.
.PHONY: bench
bench: build test-binaries downloads ## Compare the performance with stock containerd; use an idle machine
	@cd integration && $(GO) build -o ../bin/bench ./bench
	@bin/bench $(BENCH)

.PHONY: bench-docs
bench-docs: ## Run the benchmark and write docs/performance.md and docs/performance/
	@$(MAKE) --no-print-directory bench BENCH='-out docs/performance $(BENCH)'
	bin/bench -out docs/performance -doc docs/performance.md

.PHONY: bench-lazy
bench-lazy: build test-binaries lazy-binaries ## Compare whole and lazy pulls of an image until a pod runs and until all is read; use an idle machine
	@cd integration/lazy && $(GO) build -o ../../bin/bench-lazy ./bench
	@bin/bench-lazy $(BENCH)

.PHONY: bench-lazy-docs
bench-lazy-docs: ## Run the benchmark of lazy pulls and write its table into docs/performance.md
	@$(MAKE) --no-print-directory bench-lazy BENCH='-out docs/performance/lazy.txt $(BENCH)'
	bin/bench-lazy -out docs/performance/lazy.txt -doc docs/performance.md

# With 10,000 agents this needs 8 GB of memory and 12,000 open files, and takes about 15 minutes. BENCH='-agents N' or
# '-quick' runs less. BENCH=-help lists all options.
.PHONY: bench-cluster
bench-cluster: build test-binaries kubernetes-binaries ## Measure ImagePins with 10,000 agents and one API server; use an idle machine
	@cd integration/kubelet && $(GO) build -o ../../bin/bench-cluster ./scale
	@bin/bench-cluster $(BENCH)

.PHONY: bench-cluster-docs
bench-cluster-docs: ## Run the benchmark of ImagePins and write its table into docs/performance.md
	@$(MAKE) --no-print-directory bench-cluster BENCH='-out docs/performance/cluster.txt $(BENCH)'
	bin/bench-cluster -out docs/performance/cluster.txt -doc docs/performance.md

# test-race runs the tests of imagepin serve, test-power and test-versions theirs.
.PHONY: test-integration
test-integration: inotify build test-binaries crash-binaries downloads ## Tests with a real containerd, registry, runc and snapshotters; needs EROFS, loop devices and ext4
	cd integration && $(TEST) -timeout 30m -count 1 $(SUBJECTS) $(OTHERS)
	$(if $(SHORT),,cd integration/bundle/tools && $(TEST) -timeout 10m -count 1 -tags $(SKOPEO_TAGS) ./...)

.PHONY: docs-output
docs-output: build kubectl-imagepin test-binaries crash-binaries downloads kubernetes-binaries ## Run the commands in the documents and write their output into them
	cd integration && IMAGEPIN_UPDATE_DOCS=1 $(GO) test -count 1 -run TestDocs ./docs
	cd integration/kubelet && IMAGEPIN_UPDATE_DOCS=1 $(GO) test -count 1 -p 1 -run 'TestDocs|TestExamples' . ./kubectl

.PHONY: picture-trace
picture-trace: build test-binaries ## Pull an image and draw its trace into docs/pictures/trace-cold-pull.svg; use an idle machine
	cd integration && $(GO) run ./tracepicture ../docs/pictures/trace-cold-pull.svg

.PHONY: test-serve
test-serve: inotify build test-binaries crash-binaries downloads ## The integration tests with imagepin serve in front of stock containerd
	cd integration && IMAGEPIN_MODE=serve $(TEST) -timeout 30m -count 1 -skip "$$($(GO) run ./modes)" $(SUBJECTS)

.PHONY: test-power
test-power: build test-binaries downloads ## Cut power 40 times, with both modes; needs FUSE, loop devices and ext4
	cd integration && $(TEST) -timeout 10m -count 1 ./power/...

.PHONY: test-race
test-race: build test-binaries crash-binaries race-binaries ## Tests of concurrency and of imagepin serve with the race detector
	cd integration && IMAGEPIN_CONCURRENCY_BINARY=containerd-race $(TEST) -timeout 30m -count 1 -run TestConcurrency ./crash
	cd integration && IMAGEPIN_CONCURRENCY_BINARY=containerd-race $(TEST) -timeout 30m -count 1 ./serve

.PHONY: soak
soak: build test-binaries crash-binaries ## Thousands of random kills and histories (ROUNDS=5000)
	IMAGEPIN_MODEL_HISTORIES=$(or $(ROUNDS),5000) $(TEST) -timeout 24h -count 1 -run TestAnySequence ./pkg/imagepin/store
	IMAGEPIN_BUNDLE_LAYER=1024 $(TEST) -timeout 1h -count 1 -run TestMemoryDoesNotGrow ./pkg/imagepin/bundle
	IMAGEPIN_SIM_FIRST=$$(date +%s)000 IMAGEPIN_SIM_HISTORIES=$$((100 * $(or $(ROUNDS),5000))) $(TEST) -timeout 24h -count 1 -v -run TestHistories ./internal/sim
	cd integration && for mode in plugin serve; do IMAGEPIN_MODE=$$mode IMAGEPIN_CRASH_ROUNDS=$(or $(ROUNDS),5000) IMAGEPIN_APPLY_KILLS=20 \
		$(TEST) -timeout 24h -count 1 -v -run 'TestFailpoints|TestRandomKills|TestApplyKills' ./crash || exit 1; \
		IMAGEPIN_MODE=$$mode IMAGEPIN_LOCK_IMAGES=2000 $(TEST) -timeout 24h -count 1 -v -run TestLargeLock ./apply || exit 1; done

.PHONY: soak-power
soak-power: build test-binaries downloads ## Cut power 1,000 times (CUTS=1000)
	cd integration && IMAGEPIN_POWER_CUTS=$(or $(CUTS),1000) $(TEST) -timeout 24h -count 1 -v -run TestPower ./power

.PHONY: soak-cluster
soak-cluster: build test-binaries crash-binaries kubernetes-binaries ## 20 rollouts of three workloads while their tag moves (ROUNDS=20), and ten minutes without the API server
	cd integration/kubelet && IMAGEPIN_ROLLOUTS=$(or $(ROUNDS),20) IMAGEPIN_OUTAGE=10m $(TEST) -timeout 24h -count 1 -v -run 'TestRollouts|TestOutage' ./agree

.PHONY: test-lazy
test-lazy: build test-binaries lazy-binaries ## Pods on the lazily pulling stargz snapshotter and on overlayfs; needs FUSE
	cd integration/lazy && $(TEST) -timeout 10m -count 1 ./...

# The cases mostly wait for kubelet, so more cases than processors run at a time.
.PHONY: test-kubelet
test-kubelet: inotify build test-binaries kubernetes-binaries lazy-binaries ## Tests with a real kubelet, API server and etcd
	cd integration/kubelet && $(TEST) -timeout 15m -count 1 -parallel 12 -skip '^TestKubelets$$' .

.PHONY: test-kubelets
test-kubelets: inotify build test-binaries kubernetes-binaries kubelet-binaries ## Pods with all versions of kubelet in the table of RELEASES.md
	cd integration/kubelet && $(TEST) -timeout 15m -count 1 -v -parallel 12 -run TestKubelets .

# These tests take about five minutes. They do not run beside test-kubelet, whose nodes need as much memory. Nor do the packages run
# at the same time. Six cases at a time keep two processors busy: with more, each rollout of a case takes longer, and all of them do
# not end earlier.
.PHONY: test-cluster
test-cluster: inotify build kubectl-imagepin test-binaries crash-binaries image kubernetes-binaries ## Tests of pins in the Kubernetes API, with three nodes, of locks and bundles with a kubelet, and of the DaemonSets
	cd integration/kubelet && $(TEST) -timeout 15m -count 1 -p 1 -parallel 6 ./agree ./claims ./demo ./fleet ./install ./kubectl ./manifests ./scale

# The tests mostly wait for systemd, apt and dnf, so more tests than processors run at a time.
.PHONY: test-packages
test-packages: repositories test-binaries debian-roots ## Install, run and remove the packages under a real systemd, and build them twice
	cd integration/packages && $(TEST) -timeout 15m -count 1 -parallel 4 ./...

.PHONY: test-versions
test-versions: build test-binaries version-binaries downloads ## Test imagepin in and in front of other versions of containerd
	cd integration && $(TEST) -timeout 10m -count 1 ./versions/... && $(GO) run ./versions/table -check -results ../$(BIN)/versions.tsv ..

.PHONY: versions-table
versions-table: ## Write the results of test-versions, and the versions of kubelet, into RELEASES.md
	cd integration && $(GO) run ./versions/table -results ../$(BIN)/versions.tsv ..

# Each suite runs at the same time with stock containerd, imagepin in containerd, and imagepin serve. make test runs only the tests
# of the CRI about images.
.PHONY: test-peers
test-peers: build test-binaries peer-binaries downloads ## The tests of peers: those of containerd and critest (PEERS=image: a part)
	cd integration && IMAGEPIN_PEERS=$(PEERS) $(TEST) -timeout 60m -count 1 -v -parallel 3 ./peers

.PHONY: peers-table
peers-table: ## Write the results of test-peers into RELEASES.md
	cd integration && $(GO) run ./peers/table -results ../$(BIN)/peers.tsv ..

.PHONY: check
check: ## All checks that run no tests
	@$(MAKE) --no-print-directory -j2 --output-sync=target check-stages

.PHONY: check-stages
check-stages: check-format check-vet check-tidy check-workflows check-lint check-windows check-generate check-manifests check-licenses check-versions check-peers check-prometheus check-links

.PHONY: check-format
check-format:
	@files=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$files" ]; then echo "not gofmt-ed:"; echo "$$files"; exit 1; fi

.PHONY: check-vet
check-vet:
	$(GO) vet $(OURS)
	cd cmd/kubectl-imagepin && $(GO) vet ./...
	cd integration && $(GO) vet ./...
	cd integration/lazy && $(GO) vet ./...
	cd integration/bundle/tools && $(GO) vet -tags $(SKOPEO_TAGS) ./...
	cd integration/kubelet && $(GO) vet ./...
	cd integration/kubelet/schemas && $(GO) vet ./...
	cd packaging && $(GO) vet ./...
	cd integration/packages && $(GO) vet ./...
	cd tools && $(GO) vet ./...

.PHONY: check-lint
check-lint: | check-vet
	$(GO) tool -modfile=tools/go.mod staticcheck $(OURS)
	cd cmd/kubectl-imagepin && $(GO) tool -modfile=../../tools/go.mod staticcheck ./...

.PHONY: check-workflows
check-workflows:
	$(GO) tool -modfile=tools/go.mod actionlint -shellcheck= -pyflakes=

.PHONY: check-windows
check-windows:
	GOOS=windows $(GO) build ./pkg/... ./plugins/... ./cmd/...

.PHONY: check-tidy
check-tidy:
	@for m in $(MODULES); do (cd $$m && $(GO) mod tidy -diff) || exit 1; done
	@cd integration/kubelet/schemas && for m in 1.*.mod; do $(GO) mod tidy -diff -modfile=$$m || exit 1; done

.PHONY: generate
generate: ## Generate the code and the CRD from api/, and the PrometheusRule
	cd tools && $(GO) run ./protogen ../api imagepin/v1/imagepin.proto
	cd tools && $(GO) run ./prometheusrule imagepin ../contrib/prometheus/imagepin.rules.yaml ../contrib/prometheus/prometheusrule.yaml
	GO=$(GO) hack/generate-kubernetes-api.sh

.PHONY: check-generate
check-generate:
	cd tools && $(GO) run ./protogen -check ../api imagepin/v1/imagepin.proto
	cd tools && $(GO) run ./prometheusrule -check imagepin ../contrib/prometheus/imagepin.rules.yaml ../contrib/prometheus/prometheusrule.yaml
	GO=$(GO) hack/generate-kubernetes-api.sh -check

.PHONY: check-manifests
check-manifests:
	cd integration/kubelet/schemas && for m in go.mod 1.*.mod; do $(GO) test -count 1 -modfile=$$m . || exit 1; done

.PHONY: check-versions
check-versions:
	cd integration && $(GO) run ./versions/table -check ..

.PHONY: check-peers
check-peers:
	cd integration && $(GO) run ./peers/table ..

.PHONY: check-links
check-links:
	cd integration && $(GO) test -count 1 ./docs/links

# The first run downloads Prometheus from Debian and keeps it in the user's cache.
.PHONY: check-prometheus
check-prometheus:
	hack/prometheus.sh
	$(BIN)/prometheus/promtool check config contrib/prometheus/scrape.yaml
	$(BIN)/prometheus/promtool test rules contrib/prometheus/imagepin.rules.test.yaml

.PHONY: clean
clean: ## Remove all build output
	rm -rf bin dist
