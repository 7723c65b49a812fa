//go:build dependencies

// Package binaries requires the modules of the tests: `go mod tidy` does not see what tests of other modules import.
package binaries

import (
	_ "github.com/AdaLogics/go-fuzz-headers"
	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	_ "github.com/containerd/containerd/v2/cmd/containerd/server"
	_ "github.com/containerd/containerd/v2/core/content/testsuite"
	_ "github.com/containerd/containerd/v2/core/snapshots/testsuite"
	_ "github.com/containerd/containerd/v2/integration/client"
	_ "github.com/containerd/containerd/v2/integration/failpoint/cmd/cni-bridge-fp"
	_ "github.com/containerd/containerd/v2/integration/failpoint/cmd/containerd-shim-runc-fp-v1"
	_ "github.com/containerd/containerd/v2/integration/failpoint/cmd/loopback-v2"
	_ "github.com/containerd/containerd/v2/integration/remote"
	_ "github.com/containerd/containerd/v2/pkg/archive/tartest"
	_ "github.com/containerd/containerd/v2/pkg/protobuf/prototestutil"
	_ "github.com/containerd/containerd/v2/pkg/testutil"
	_ "github.com/containerd/log/logtest"
	_ "github.com/containerd/nri/pkg/stub"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/opencontainers/selinux/go-selinux"
	_ "github.com/stretchr/testify/require"
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
	_ "go.etcd.io/bbolt"
	_ "golang.org/x/mod/semver"
	_ "google.golang.org/protobuf/testing/protocmp"
	_ "k8s.io/client-go/tools/remotecommand"
	_ "k8s.io/cri-client/pkg/util"
	_ "sigs.k8s.io/cri-tools/pkg/benchmark"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
