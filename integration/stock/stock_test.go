// Package stock tests what the test kit and the other tests assume about containerd. Most tests run with stock
// containerd and with imagepin, and want the same results. Some document limits of stock containerd.
package stock

import (
	"context"
	"fmt"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPod pulls an image, runs and removes a pod, and kills and restarts containerd while the pod runs.
func TestPod(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		ctx := testkit.Context(t)
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{Binary: binary, SandboxImage: testkit.PushPause(t, reg)})
		opts := images.Options{Version: "v7"}
		testkit.Push(t, reg, "app:v7", testkit.AppIndex(t, opts, images.HostPlatform(), "linux/s390x"))
		ref := reg.Ref("app:v7")

		empty := testkit.State(t, n)
		if !empty.Empty() {
			t.Fatalf("a new node is not empty:\n%s", strings.Join(empty.Lines(), "\n"))
		}
		id, err := n.Pull(ctx, ref, "")
		if err != nil {
			t.Fatal(err)
		}
		pod, err := n.RunPod(ctx, node.PodOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range []string{ref, id} {
			_, line, err := n.RunContainer(ctx, pod, node.ContainerOptions{Image: image})
			if err != nil {
				t.Fatal(err)
			}
			if want := opts.Line(0); line != want {
				t.Errorf("container of %s printed %q, want %q", image, line, want)
			}
		}

		// The pod keeps running while containerd is down, and is listed after the restart.
		if err := n.Kill9(); err != nil {
			t.Fatal(err)
		}
		if err := n.Start(ctx); err != nil {
			t.Fatal(err)
		}
		res, err := n.Runtime().ListContainers(ctx, &cri.ListContainersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Containers) != 2 {
			t.Errorf("got %d containers after a restart, want 2", len(res.Containers))
		}
		for _, c := range res.Containers {
			if c.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Errorf("container %s is %s after a restart, want running", c.Metadata.Name, c.State)
			}
		}
		status, err := n.ImageStatus(ctx, ref, "")
		if err != nil {
			t.Fatal(err)
		}
		if status == nil || status.Id != id {
			t.Errorf("image status of %s after a restart: got %v, want ID %s", ref, status, id)
		}

		if err := n.RemovePod(ctx, pod); err != nil {
			t.Fatal(err)
		}
		for _, image := range []string{ref, reg.Ref(testkit.PauseRef)} {
			if err := n.RemoveImage(ctx, image, ""); err != nil {
				t.Fatal(err)
			}
		}
		testkit.NoLeaks(t, n, empty)
	})
}

// TestPullRequests counts the registry requests of a cold and of a warm pull.
func TestPullRequests(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		ctx := testkit.Context(t)
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{Binary: binary})
		testkit.Push(t, reg, "app:v1", testkit.AppIndex(t, images.Options{}, images.HostPlatform(), "linux/s390x"))

		if _, err := n.Pull(ctx, reg.Ref("app:v1"), ""); err != nil {
			t.Fatal(err)
		}
		// Index, manifest, config and two layers.
		heads, gets := reg.Count(registry.Is("HEAD", registry.Manifest)), reg.Count(registry.Is("GET", ""))
		if heads != 1 || gets != 5 || reg.Count() != 6 {
			t.Errorf("a cold pull sent %d HEAD and %d GET requests, want 1 and 5:\n%s", heads, gets, reg.Dump())
		}
		reg.Reset()
		if _, err := n.Pull(ctx, reg.Ref("app:v1"), ""); err != nil {
			t.Fatal(err)
		}
		if reg.Count(registry.Is("HEAD", registry.Manifest)) != 1 || reg.Count() != 1 {
			t.Errorf("a warm pull sent requests other than one HEAD:\n%s", reg.Dump())
		}
	})
}

// TestForeignPlatformRuns checks that an image for another platform runs on this machine if it is pulled by the digest
// of its manifest. Its container prints that platform, and the user of the image's configuration.
func TestForeignPlatformRuns(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		ctx := testkit.Context(t)
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{Binary: binary, SandboxImage: testkit.PushPause(t, reg)})
		opts := images.Options{Platform: "linux/s390x", User: "1234"}
		digest := testkit.Push(t, reg, "app:s390x", testkit.App(t, opts))
		ref := reg.Ref("app@" + digest.String())
		if _, err := n.Ctr(ctx, "images", "pull", "--plain-http", "--platform", "linux/s390x", ref); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the CRI lists the image", func(ctx context.Context) (bool, error) {
			img, err := n.ImageStatus(ctx, ref, "")
			return img != nil, err
		})
		line, err := n.Run(ctx, "", node.ContainerOptions{Image: ref})
		if err != nil {
			t.Fatal(err)
		}
		if want := opts.Line(1234); line != want {
			t.Errorf("the container printed %q, want %q", line, want)
		}
	})
}

// TestHandlerOnOtherSnapshotter runs pods of two handlers on two snapshotters. Stock can do this if layers are kept.
func TestHandlerOnOtherSnapshotter(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		ctx := testkit.Context(t)
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{
			Binary: binary, SandboxImage: testkit.PushPause(t, reg),
			Handlers: []node.Handler{{Name: "second", Snapshotter: "native"}},
		})
		opts := images.Options{}
		testkit.Push(t, reg, "app:v1", testkit.App(t, opts))
		ref := reg.Ref("app:v1")
		for _, handler := range []string{"", "second"} {
			if _, err := n.Pull(ctx, ref, handler); err != nil {
				t.Fatal(err)
			}
			line, err := n.Run(ctx, handler, node.ContainerOptions{Image: ref})
			if err != nil {
				t.Fatalf("handler %q: %v", handler, err)
			}
			if line != opts.Line(0) {
				t.Errorf("handler %q: the container printed %q", handler, line)
			}
		}
		state := testkit.State(t, n)
		for _, s := range []string{"overlayfs", "native"} {
			if len(state.SnapshotsOf(s)) == 0 {
				t.Errorf("no snapshots in %s", s)
			}
		}
	})
}

// TestRegistryFailures checks that faults of the test registry reach containerd, that a failed pull lists no image, and
// that the next pull succeeds. The error of a manifest that containerd does not accept has containerd's reason.
//
// If stock receives wrong bytes, it keeps them as an ingest and resumes that. Every pull of the image then fails until
// the next garbage collection. The cases marked poisoned run it in between.
func TestRegistryFailures(t *testing.T) {
	tests := []struct {
		name     string
		rule     func(registry.Request) *registry.Fault
		poisoned bool
	}{
		{"manifest 404", registry.FaultIf(registry.Fault{Status: 404}, registry.Is("", registry.Manifest)), false},
		{"all 403", registry.FaultIf(registry.Fault{Status: 403}), false},
		{"all 500", registry.FaultIf(registry.Fault{Status: 500}), false},
		{"all aborted", registry.FaultIf(registry.Fault{Abort: true}), false},
		{"blobs corrupt", registry.FaultIf(registry.Fault{Corrupt: true, After: 50}, registry.Is("GET", registry.Blob)), true},
		{"manifest HTML", registry.FaultIf(registry.Fault{HTML: true}, registry.Is("GET", registry.Manifest)), true},
	}
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		ctx := testkit.Context(t)
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{Binary: binary})
		for i, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				tag := fmt.Sprintf("app:v%d", i)
				testkit.Push(t, reg, tag, testkit.App(t, images.Options{Version: tag, SingleLayer: true}))
				reg.SetFault(test.rule)
				if _, err := n.Pull(ctx, reg.Ref(tag), ""); err == nil {
					t.Error("the pull succeeded")
				}
				img, err := n.ImageStatus(ctx, reg.Ref(tag), "")
				if err != nil {
					t.Fatal(err)
				}
				if img != nil {
					t.Errorf("the image is on the node after a failed pull: %v", img)
				}
				reg.SetFault(nil)
				_, err = n.Pull(ctx, reg.Ref(tag), "")
				if test.poisoned && err != nil {
					if err := n.GC(ctx); err != nil {
						t.Fatal(err)
					}
					_, err = n.Pull(ctx, reg.Ref(tag), "")
				}
				if err != nil {
					t.Errorf("the next pull failed: %v", err)
				}
			})
		}
		for name, c := range map[string]struct {
			raw    images.Raw
			reason string
		}{
			"schema1": {
				images.Raw{MediaType: "application/vnd.docker.distribution.manifest.v1+prettyjws", Body: []byte(`{"schemaVersion":1}`)},
				"schema 1",
			},
			"too-large": {images.Raw{MediaType: "application/vnd.oci.image.index.v1+json", Body: make([]byte, 5<<20)}, "rejecting 5242880 byte manifest"},
		} {
			reg.PushRaw(name+":v1", c.raw)
			if _, err := n.Pull(ctx, reg.Ref(name+":v1"), ""); err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("%s: got %v, want %q", name, err, c.reason)
			}
		}
	})
}

// TestTruncatedLayer closes the connection within a layer. containerd requests the rest and the pull succeeds.
func TestTruncatedLayer(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{Binary: binary})
		testkit.Push(t, reg, "app:v1", testkit.App(t, images.Options{SingleLayer: true}))
		const sent = 100_000
		reg.SetFault(func(q registry.Request) *registry.Fault {
			if q.Kind == registry.Blob && q.Range == "" {
				return &registry.Fault{Truncate: true, After: sent}
			}
			return nil
		})
		if _, err := n.Pull(testkit.Context(t), reg.Ref("app:v1"), ""); err != nil {
			t.Fatalf("%v\n%s", err, reg.Dump())
		}
		resumed := func(q registry.Request) bool { return q.Range == fmt.Sprintf("bytes=%d-", sent) && q.Status == 206 }
		if reg.Count(resumed) != 1 {
			t.Errorf("want one request for the rest:\n%s", reg.Dump())
		}
	})
}

// TestCancelledPull cancels a pull while the registry delays a layer.
func TestCancelledPull(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{Binary: binary})
		testkit.Push(t, reg, "app:v1", testkit.App(t, images.Options{}))
		release := make(chan struct{})
		defer close(release)
		reg.SetFault(registry.FaultIf(registry.Fault{Hang: release}, registry.Is("GET", registry.Blob)))

		ctx, cancel := context.WithCancel(testkit.Context(t))
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := n.Pull(ctx, reg.Ref("app:v1"), "")
			failed <- err
		}()
		if _, err := reg.Wait(testkit.Context(t), registry.Is("GET", registry.Blob)); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-failed; err == nil {
			t.Error("the cancelled pull succeeded")
		}
		testkit.Eventually(t, "all requests to the registry are done", func(context.Context) (bool, error) {
			return reg.Count(func(q registry.Request) bool { return !q.Done }) == 0, nil
		})
	})
}

// TestAuth pulls from a registry that requires credentials, with Basic and with Bearer authentication.
func TestAuth(t *testing.T) {
	users := map[string]registry.User{
		"alice": {Password: "secret-a", Repositories: []string{"alice/*"}},
		"bob":   {Password: "secret-b", Repositories: []string{"bob/*"}},
	}
	for _, bearer := range []bool{false, true} {
		t.Run(fmt.Sprintf("bearer=%t", bearer), func(t *testing.T) {
			testkit.OnBoth(t, func(t *testing.T, binary string) {
				ctx := testkit.Context(t)
				reg := testkit.Registry(t)
				reg.SetAuth(&registry.Auth{Bearer: bearer, Public: []string{"public/*"}, Users: users})
				n := testkit.Node(t, node.Options{Binary: binary})
				img := testkit.App(t, images.Options{})
				testkit.Push(t, reg, "alice/app:v1", img)
				testkit.Push(t, reg, "public/app:v1", testkit.App(t, images.Options{Version: "v2"}))

				pull := func(ref string, auth *cri.AuthConfig) error {
					_, err := n.Images().PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: reg.Ref(ref)}, Auth: auth})
					return err
				}
				if err := pull("alice/app:v1", nil); err == nil {
					t.Error("a private image was pulled without credentials")
				}
				if err := pull("alice/app:v1", &cri.AuthConfig{Username: "bob", Password: "secret-b"}); err == nil {
					t.Error("a private image was pulled by another user")
				}
				if err := pull("alice/app:v1", &cri.AuthConfig{Username: "alice", Password: "secret-a"}); err != nil {
					t.Errorf("pulling a private image as its user: %v\n%s", err, reg.Dump())
				}
				if err := pull("public/app:v1", nil); err != nil {
					t.Errorf("pulling a public image: %v\n%s", err, reg.Dump())
				}
				if n := reg.Count(func(q registry.Request) bool { return q.User == "alice" && q.Status == 200 }); n == 0 {
					t.Errorf("got no successful request as alice:\n%s", reg.Dump())
				}
			})
		})
	}
}

// TestMirror pulls through a mirror, and from the upstream registry if the mirror is down.
func TestMirror(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		ctx := testkit.Context(t)
		upstream, mirror := testkit.Registry(t), testkit.Registry(t)
		n := testkit.Node(t, node.Options{Binary: binary})
		if err := n.WriteHosts(upstream.Host(), node.Mirror(upstream.URL(), mirror.URL())); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*registry.Registry{upstream, mirror} {
			testkit.Push(t, r, "app:v1", testkit.App(t, images.Options{}))
			testkit.Push(t, r, "app:v2", testkit.App(t, images.Options{Version: "v2"}))
		}
		if _, err := n.Pull(ctx, upstream.Ref("app:v1"), ""); err != nil {
			t.Fatal(err)
		}
		if upstream.Count() != 0 || mirror.Count() == 0 {
			t.Errorf("requests to the upstream registry:\n%sto the mirror:\n%s", upstream.Dump(), mirror.Dump())
		}
		mirror.Down()
		if _, err := n.Pull(ctx, upstream.Ref("app:v2"), ""); err != nil {
			t.Fatal(err)
		}
		if upstream.Count() == 0 {
			t.Error("the upstream registry got no request")
		}
	})
}

// TestRollback switches a node from stock to imagepin and back.
func TestRollback(t *testing.T) {
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Binary: node.Stock, SandboxImage: testkit.PushPause(t, reg)})
	opts := images.Options{}
	testkit.Push(t, reg, "app:v1", testkit.App(t, opts))
	id, err := n.Pull(ctx, reg.Ref("app:v1"), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, binary := range []string{node.Ours, node.Stock} {
		if err := n.Restart(ctx, func(o *node.Options) { o.Binary = binary }); err != nil {
			t.Fatal(err)
		}
		img, err := n.ImageStatus(ctx, reg.Ref("app:v1"), "")
		if err != nil {
			t.Fatal(err)
		}
		if img == nil || img.Id != id {
			t.Errorf("%s: got image status %v, want ID %s", binary, img, id)
		}
		line, err := n.Run(ctx, "", node.ContainerOptions{Image: id})
		if err != nil {
			t.Fatal(err)
		}
		if line != opts.Line(0) {
			t.Errorf("%s: the container printed %q", binary, line)
		}
	}
}

// TestStockLosesSecondSnapshotter documents why imagepin exists: after layers are discarded, stock cannot run pods on
// another snapshotter. Even the sandbox image fails.
func TestStockLosesSecondSnapshotter(t *testing.T) {
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{
		Binary: node.Stock, SandboxImage: testkit.PushPause(t, reg), DiscardUnpackedLayers: true,
		Handlers: []node.Handler{{Name: "second", Snapshotter: "native"}},
	})
	if _, err := n.RunPod(ctx, node.PodOptions{}); err != nil {
		t.Fatal(err)
	}
	// The next garbage collection discards the layers.
	if err := n.GC(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := n.RunPod(ctx, node.PodOptions{Handler: "second"})
	if err == nil || !strings.Contains(err.Error(), "error unpacking image") || !strings.Contains(err.Error(), "not found") {
		t.Errorf("pod on the second snapshotter: got error %v, want an unpack error", err)
	}
}

// TestSharedLayerOnSecondSnapshotter runs an image on a second snapshotter whose layers were unpacked before from other blobs, of
// another image with the same files. Stock fetches no layer that the first snapshotter has unpacked, and then has none to unpack for the
// second one, although it keeps layers (https://github.com/containerd/containerd/issues/8674).
func TestSharedLayerOnSecondSnapshotter(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		ctx := testkit.Context(t)
		reg := testkit.Registry(t)
		n := testkit.Node(t, node.Options{
			Binary: binary, SandboxImage: testkit.PushPause(t, reg),
			Handlers: []node.Handler{{Name: "second", Snapshotter: "native"}},
		})
		opts := images.Options{}
		testkit.Push(t, reg, "app:gzip", testkit.App(t, opts))
		opts.Compression, opts.Labels = images.Zstd, map[string]string{"build": "2"} // another image ID
		testkit.Push(t, reg, "app:zstd", testkit.App(t, opts))
		for _, tag := range []string{"gzip", "zstd"} {
			if _, err := n.Pull(ctx, reg.Ref("app:"+tag), ""); err != nil {
				t.Fatal(err)
			}
		}
		// The sandbox image is on the node when the second handler needs it.
		if _, err := n.Run(ctx, "", node.ContainerOptions{Image: reg.Ref("app:zstd")}); err != nil {
			t.Fatal(err)
		}
		line, err := n.Run(ctx, "second", node.ContainerOptions{Image: reg.Ref("app:zstd")})
		if binary == node.Stock {
			if err == nil || !strings.Contains(err.Error(), "failed to get reader from content store") || !strings.Contains(err.Error(), "not found") {
				t.Errorf("stock: got %q, %v, want an unpack error", line, err)
			}
			return
		}
		if err != nil || line != opts.Line(0) {
			t.Errorf("got %q, %v", line, err)
		}
	})
}

// TestStockIgnoresHandlerPlatform documents that stock ignores a handler's platform and pulls for the node's platform.
func TestStockIgnoresHandlerPlatform(t *testing.T) {
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{
		Binary: node.Stock, SandboxImage: testkit.PushPause(t, reg),
		Handlers: []node.Handler{{Name: "foreign", Platform: "linux/s390x"}},
	})
	opts := images.Options{}
	testkit.Push(t, reg, "app:v1", testkit.AppIndex(t, opts, images.HostPlatform(), "linux/s390x"))
	id, err := n.Pull(ctx, reg.Ref("app:v1"), "foreign")
	if err != nil {
		t.Fatal(err)
	}
	line, err := n.Run(ctx, "foreign", node.ContainerOptions{Image: id})
	if err != nil {
		t.Fatal(err)
	}
	if line != opts.Line(0) {
		t.Errorf("the container printed %q", line)
	}
}

// TestStockIgnoresMirrorsOfTwoRoots documents that stock ignores hosts.toml if config_path has two roots, the default.
func TestStockIgnoresMirrorsOfTwoRoots(t *testing.T) {
	ctx := testkit.Context(t)
	upstream, mirror := testkit.Registry(t), testkit.Registry(t)
	n := testkit.Node(t, node.Options{Binary: node.Stock, HostsDirs: []string{"certs.d", "docker-certs.d"}})
	if err := n.WriteHosts(upstream.Host(), node.Mirror(upstream.URL(), mirror.URL())); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*registry.Registry{upstream, mirror} {
		testkit.Push(t, r, "app:v1", testkit.App(t, images.Options{}))
	}
	if _, err := n.Pull(ctx, upstream.Ref("app:v1"), ""); err != nil {
		t.Fatal(err)
	}
	if mirror.Count() != 0 || upstream.Count() == 0 {
		t.Errorf("requests to the upstream registry:\n%sto the mirror:\n%s", upstream.Dump(), mirror.Dump())
	}
}
