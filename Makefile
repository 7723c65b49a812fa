# imagepin: build, test and demo. `make help` lists the targets.
GO          ?= go
VERSION     ?= 0.1.0-dev
CONTAINERD   = $(shell $(GO) list -m -f '{{.Version}}' github.com/containerd/containerd/v2)
CTD_VERSION  = github.com/containerd/containerd/v2/version
LDFLAGS      = -s -w -X $(CTD_VERSION).Version=$(CONTAINERD)+imagepin
GOBUILD      = CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)'

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

.PHONY: build
build: ## bin/containerd (with imagepin), bin/ctr, bin/containerd-shim-runc-v2
	$(GOBUILD) -o bin/containerd ./cmd/containerd
	$(GOBUILD) -o bin/ctr github.com/containerd/containerd/v2/cmd/ctr
	$(GOBUILD) -o bin/containerd-shim-runc-v2 github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2
