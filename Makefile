# imagepin: build, test and demo. `make help` lists the targets.
GO          ?= go
CONTAINERD   = $(shell $(GO) list -m -f '{{.Version}}' github.com/containerd/containerd/v2)
CTD_VERSION  = github.com/containerd/containerd/v2/version
LDFLAGS      = -s -w -X $(CTD_VERSION).Version=$(CONTAINERD)+imagepin
GOBUILD      = CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)'
OURS         = ./api/... ./cmd/... ./internal/... ./pkg/... ./plugins/... ./version
MODULES      = . integration integration/lazy integration/kubelet integration/kubelet/binaries tools

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 20

.PHONY: build
build: ## bin/containerd (with imagepin), bin/imagepin, bin/ctr, bin/containerd-shim-runc-v2
	$(GOBUILD) -o bin/containerd ./cmd/containerd
	$(GOBUILD) -o bin/imagepin ./cmd/imagepin
	$(GOBUILD) -o bin/ctr github.com/containerd/containerd/v2/cmd/ctr
	$(GOBUILD) -o bin/containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2

.PHONY: test-binaries
test-binaries: ## bin/containerd-stock and bin/runc, for the tests and the demo
	GO=$(GO) hack/test-binaries.sh

.PHONY: crash-binaries
crash-binaries: ## bin/containerd-failpoints: ours, to be killed at named places
	GO=$(GO) hack/test-binaries.sh crash

.PHONY: demo
demo: build test-binaries ## Run the main job for real, on a registry and a containerd of its own
	@cd integration && $(GO) build -o ../bin/demo ./demo && exec ../bin/demo

.PHONY: demo-stock
demo-stock: build test-binaries ## The same steps on stock containerd: where it fails
	@cd integration && $(GO) build -o ../bin/demo ./demo && exec ../bin/demo -stock

.PHONY: test
test: test-unit test-integration test-race test-lazy test-kubelet ## All tests

.PHONY: test-unit
test-unit: ## Unit tests, under the race detector
	$(GO) test -race $(OURS)

.PHONY: test-integration
test-integration: build test-binaries crash-binaries ## Real containerd, registry, runc and snapshotters
	cd integration && $(GO) test -timeout 30m ./...

.PHONY: test-race
test-race: build test-binaries crash-binaries ## Everything at once, on a containerd under the race detector
	GO=$(GO) hack/test-binaries.sh race
	cd integration && IMAGEPIN_CONCURRENCY_BINARY=containerd-race $(GO) test -timeout 30m -count 1 -run TestConcurrency .

.PHONY: soak
soak: build test-binaries crash-binaries ## Thousands of kills and of histories at random (ROUNDS=5000)
	IMAGEPIN_MODEL_HISTORIES=$(or $(ROUNDS),5000) $(GO) test -timeout 24h -count 1 -run TestAnySequence ./pkg/imagepin/store
	cd integration && IMAGEPIN_CRASH_ROUNDS=$(or $(ROUNDS),5000) $(GO) test -timeout 24h -count 1 -v -run TestRandomKills .

.PHONY: test-lazy
test-lazy: build test-binaries ## Pods on a real lazily pulling snapshotter (stargz's) beside overlayfs; needs FUSE
	GO=$(GO) hack/lazy-binaries.sh
	cd integration/lazy && $(GO) test -timeout 10m ./...

# Cold this compiles Kubernetes, for minutes; the binaries are kept in the user's cache. The cases mostly wait for kubelet, so
# that more of them run at once than there are processors.
.PHONY: test-kubelet
test-kubelet: build test-binaries ## Pods of a real kubelet, API server and etcd
	GO=$(GO) hack/kubernetes-binaries.sh
	cd integration/kubelet && $(GO) test -timeout 15m -parallel 12 ./...

.PHONY: check
check: check-format check-vet check-lint check-windows check-tidy check-generate ## Everything that is checked without running it

.PHONY: check-format
check-format:
	@files=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$files" ]; then echo "not gofmt-ed:"; echo "$$files"; exit 1; fi

.PHONY: check-vet
check-vet:
	$(GO) vet $(OURS)
	cd integration && $(GO) vet ./...
	cd integration/lazy && $(GO) vet ./...
	cd integration/kubelet && $(GO) vet ./...

.PHONY: check-lint
check-lint:
	$(GO) tool -modfile=tools/go.mod staticcheck $(OURS)

.PHONY: check-windows
check-windows:
	GOOS=windows $(GO) build ./pkg/... ./plugins/...

.PHONY: check-tidy
check-tidy:
	@for m in $(MODULES); do (cd $$m && $(GO) mod tidy -diff) || exit 1; done

.PHONY: generate
generate: ## Write the code that is generated of api/
	cd tools && $(GO) run ./protogen ../api imagepin/v1/imagepin.proto

.PHONY: check-generate
check-generate:
	cd tools && $(GO) run ./protogen -check ../api imagepin/v1/imagepin.proto

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin
