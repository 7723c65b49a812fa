package remove

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// permutations returns all permutations of names.
func permutations(names []string) [][]string {
	if len(names) < 2 {
		return [][]string{slices.Clone(names)}
	}
	var all [][]string
	for i, first := range names {
		rest := slices.Delete(slices.Clone(names), i, i+1)
		for _, p := range permutations(rest) {
			all = append(all, append([]string{first}, p...))
		}
	}
	return all
}

// nameCase is an image with several names.
type nameCase struct {
	name          string
	refs          []string // references to pull
	tags, digests []string // names that are listed then
}

// nameCases pushes images with several names: two manifests of one config, one manifest in two repositories, and one
// manifest with two tags and a digest.
func nameCases(r *testkit.Rig, prefix string) []nameCase {
	gzip := testkit.App(r.T, images.Options{Version: prefix + "-shared"})
	zstd := testkit.App(r.T, images.Options{Version: prefix + "-shared", Compression: images.Zstd})
	gzipTag, gzipDigest := r.PushImage(prefix+"-config:gzip", gzip)
	zstdTag, zstdDigest := r.PushImage(prefix+"-config:zstd", zstd)

	opts := images.Options{Version: prefix + "-repos"}
	oneTag, oneDigest := r.Push(prefix+"-one:v1", opts, images.HostPlatform(), testkit.Foreign)
	twoTag, twoDigest := r.Push(prefix+"-two:v1", opts, images.HostPlatform(), testkit.Foreign)

	opts = images.Options{Version: prefix + "-tags"}
	tag, digest := r.Push(prefix+"-tags:v1", opts, images.HostPlatform(), testkit.Foreign)
	other, _ := r.Push(prefix+"-tags:stable", opts, images.HostPlatform(), testkit.Foreign)
	return []nameCase{
		{"two manifests of one config", []string{gzipTag, zstdTag}, []string{gzipTag, zstdTag}, []string{gzipDigest, zstdDigest}},
		{"one manifest in two repositories", []string{oneTag, twoTag}, []string{oneTag, twoTag}, []string{oneDigest, twoDigest}},
		{"two tags and a digest", []string{tag, other, digest}, []string{tag, other}, []string{digest}},
	}
}

// TestRemoveImageOfManyNames checks that a removal by any name of an image removes all its names, as the CRI requires,
// and frees everything.
func TestRemoveImageOfManyNames(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	before := r.MustState()
	for _, c := range nameCases(r, "rm") {
		t.Run(c.name, func(t *testing.T) {
			r := r.In(t)
			forms := slices.Concat(c.tags, c.digests, []string{"ID", "hex of the ID", "short ID", "tag@digest"})
			for i, name := range forms {
				var id string
				for j := range c.refs {
					// Rotate the order of the pulls: the records of shared content must not depend on it.
					ref := c.refs[(i+j)%len(c.refs)]
					for _, handler := range []string{"", testkit.Second}[:1+i%2] {
						got := r.MustPull(ref, handler)
						if id != "" && got != id {
							t.Fatalf("bad test data: %s has image ID %s, want %s", ref, got, id)
						}
						id = got
					}
				}
				r.WantNames(id, c.tags, c.digests)
				for _, known := range slices.Concat(c.tags, c.digests) {
					if got := r.MustStatus(known, "").GetId(); got != id {
						t.Errorf("ImageStatus %s returned %q, want %s", known, got, id)
					}
				}
				hex := strings.TrimPrefix(id, "sha256:")
				switch name {
				case "ID":
					name = id
				case "hex of the ID":
					name = hex
				case "short ID":
					name = hex[:10]
				case "tag@digest":
					_, digest, _ := strings.Cut(c.digests[0], "@")
					name = c.tags[0] + "@" + digest
				}
				if got := r.MustStatus(name, "").GetId(); got != id {
					t.Errorf("ImageStatus %s returned %q, want %s", name, got, id)
				}
				r.MustRemove(name, "")
				r.WantNames(id, nil, nil)
				r.WantState("after the removal by "+name, before)
			}
		})
	}
}

// TestRemoveImageWithoutKeys removes, by each of its names, an image that has no key because its layers are not on the
// node. All its records are removed, as in stock containerd, including one whose name is not a reference.
func TestRemoveImageWithoutKeys(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	tag, digest := r.Push("app:v1", images.Options{}, images.HostPlatform(), testkit.Foreign)
	other := r.Reg.Ref("app:other")
	before := r.MustState()
	left := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(left)
		}
	})
	for _, form := range []string{"tag", "another tag", "digest", "ID", "hex of the ID", "short ID"} {
		for _, args := range [][]string{
			{"content", "fetch", "--metadata-only", "--plain-http", "--platform", images.HostPlatform(), tag},
			{"images", "tag", tag, other, digest, "no-reference"},
		} {
			if out, err := r.Ctr(r.Ctx, args...); err != nil {
				t.Fatalf("ctr %v: %v\n%s", args, err, out)
			}
		}
		// containerd's CRI labels each record when it handles its event. It would recreate a record that is removed
		// meanwhile.
		var id string
		r.Eventually("the image is listed and its records have the label of the CRI", func() bool {
			for id = range r.Listed() {
			}
			all, err := r.Client().ImageService().List(testkit.NSContext(r.Ctx))
			return err == nil && id != "" && !slices.ContainsFunc(all, func(img ctdimages.Image) bool { return img.Labels["io.cri-containerd.image"] == "" })
		})
		hex := strings.TrimPrefix(id, "sha256:")
		r.MustRemove(map[string]string{
			"tag": tag, "another tag": other, "digest": digest, "ID": id, "hex of the ID": hex, "short ID": hex[:10],
		}[form], "")
		// A failing attempt to unpack the image may hold a lease for a moment.
		r.Eventually("everything is freed after the removal by "+form, func() bool {
			left = fmt.Sprint(r.Listed(), node.Diff(before, r.MustState()))
			return len(r.Listed()) == 0 && node.Diff(before, r.MustState()) == ""
		})
	}
}

// TestRemoveNamesOneByOne removes the records of an image's tags with ctr, in every order. Containers of the image can
// be created after each removal, and it stays listed with its other names.
func TestRemoveNamesOneByOne(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	pod := r.MustPod("")
	before := r.MustState()
	for _, c := range nameCases(r, "ctr") {
		t.Run(c.name, func(t *testing.T) {
			r := r.In(t)
			for _, order := range permutations(c.tags) {
				var id string
				for _, ref := range c.refs {
					id = r.MustPull(ref, "")
				}
				tags := slices.Clone(c.tags)
				for _, name := range order {
					if _, err := r.Ctr(r.Ctx, "images", "rm", "--sync", name); err != nil {
						t.Fatal(err)
					}
					tags = slices.DeleteFunc(tags, func(t string) bool { return t == name })
					r.Eventually("the image is listed as "+strings.Join(tags, ", "), func() bool {
						img := r.Listed()[id]
						return slices.Equal(img.GetRepoTags(), slices.Sorted(slices.Values(tags))) && len(img.GetRepoDigests()) == len(c.digests)
					})
					c, err := r.CreateContainer(r.Ctx, pod, node.ContainerOptions{Image: id})
					if err != nil {
						t.Fatalf("creating a container after the removal of %s: %v", name, err)
					}
					if err := c.Remove(r.Ctx); err != nil {
						t.Fatal(err)
					}
				}
				r.MustRemove(id, "")
				r.WantState("after the removal of the last name", before)
			}
		})
	}
}

// TestRemoveTargetByTarget removes an image for one handler after the other, in every order. Each removal frees
// snapshots of that snapshotter only, the image still runs for the others, and after the last removal nothing is left.
func TestRemoveTargetByTarget(t *testing.T) {
	t.Parallel()
	for _, second := range testkit.SecondSnapshotters {
		for _, discard := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/discard=%t", second, discard), func(t *testing.T) {
				t.Parallel()
				r := testkit.NewRig(t, testkit.WithSecond(second, node.Options{
					DiscardUnpackedLayers: discard, Handlers: []node.Handler{{Name: "foreign", Platform: testkit.Foreign}},
				}))
				opts := images.Options{}
				tag, digest := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
				platformOf := map[string]string{"runc": images.HostPlatform(), testkit.Second: images.HostPlatform(), "foreign": testkit.Foreign}
				pods := make(map[string]*node.Pod)
				for h := range platformOf {
					pods[h] = r.MustPod(h)
				}
				r.Collect()
				before := r.MustState()
				for i, order := range permutations([]string{"runc", testkit.Second, "foreign"}) {
					id := make(map[string]string)
					for h := range platformOf {
						id[h] = r.MustPull(tag, h)
					}
					all := r.MustState()
					for removed, handler := range order {
						r.MustRemove([]string{tag, digest, id[handler]}[i%3], handler)
						if img := r.MustStatus(tag, handler); img != nil {
							t.Errorf("order %v: the image is still available for %s after its removal", order, handler)
						}
						for _, other := range order[removed+1:] {
							if got := r.MustStatus(tag, other).GetId(); got != id[other] {
								t.Errorf("order %v: after the removal for %s, ImageStatus for %s returned %q, want %s", order, handler, other, got, id[other])
							}
							c := r.WantLine(pods[other], node.ContainerOptions{Image: tag}, testkit.Line(opts, platformOf[other]))
							if err := c.Remove(r.Ctx); err != nil {
								t.Fatal(err)
							}
						}
						state := r.MustState()
						for _, s := range []string{"overlayfs", second} {
							have, had := len(state.SnapshotsOf(s)), len(all.SnapshotsOf(s))
							if mine := s == second == (handler == testkit.Second); mine != (have < had) {
								t.Errorf("order %v: the removal for %s left %d of %d snapshots in %s, want fewer: %t", order, handler, have, had, s, mine)
							}
						}
						all = state
					}
					r.WantState("after the removal of the last target", before)
				}
			})
		}
	}
}

// TestRemoveWhatIsUsed removes an image by ID, as kubelet's image GC does, while a container, a volume or a sandbox
// uses it. It is removed only for targets that do not use it, or for all targets, as in stock containerd, if all use
// it.
func TestRemoveWhatIsUsed(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: append([]node.Handler{{Name: "foreign", Platform: testkit.Foreign}}, testkit.OnNative...)})
	pause := r.Options().SandboxImage
	opts := images.Options{SingleLayer: true}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	tool, _ := r.Push("tool:v1", images.Options{Version: "tool"}, images.HostPlatform(), testkit.Foreign)
	running := func(p *node.Pod) *node.Container {
		return r.WantLine(p, node.ContainerOptions{Image: tag}, testkit.Line(opts, images.HostPlatform()))
	}
	exited := func(p *node.Pod) *node.Container {
		c := r.WantLine(p, node.ContainerOptions{Image: tag, Args: []string{"exit", "0"}}, "exiting 0")
		r.Eventually("the container has exited", func() bool {
			s, err := c.Status(r.Ctx)
			return err == nil && s.State == cri.ContainerState_CONTAINER_EXITED
		})
		return c
	}
	created := func(p *node.Pod) *node.Container {
		c, err := r.CreateContainer(r.Ctx, p, node.ContainerOptions{Image: tag})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	volume := func(p *node.Pod) *node.Container {
		mount := &cri.Mount{ContainerPath: "/volume", Readonly: true, Image: &cri.ImageSpec{Image: tag}}
		c, err := r.CreateContainer(r.Ctx, p, node.ContainerOptions{Image: tool, Mounts: []*cri.Mount{mount}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, use := range []struct {
		name string
		make func(*node.Pod) *node.Container
	}{{"running", running}, {"exited", exited}, {"created", created}, {"volume", volume}} {
		for _, user := range []string{"", testkit.Second} {
			t.Run(use.name+" "+testkit.HandlerName(user), func(t *testing.T) {
				r := r.In(t)
				unused := map[string]string{"": testkit.Second, testkit.Second: ""}[user]
				pod := r.MustPod(user)
				r.MustPull(tool, user)
				r.MustPull(tag, "foreign") // has another ID and must stay
				r.Collect()
				before := r.MustState()
				id := r.MustPull(tag, user)
				r.MustPull(tag, unused)
				c := use.make(pod)

				r.MustRemove(id, "")
				if r.MustStatus(tag, testkit.HandlerName(user)).GetId() != id {
					t.Errorf("the image was removed for the handler that uses it")
				}
				if img := r.MustStatus(tag, testkit.HandlerName(unused)); img != nil {
					t.Errorf("the image was not removed for the handler that does not use it")
				}
				r.MustRemove(id, "")
				if img := r.MustStatus(tag, testkit.HandlerName(user)); img != nil {
					t.Error("the image was not removed although all its targets use it")
				}
				if r.MustStatus(tag, "foreign") == nil {
					t.Error("an image with another ID was removed")
				}
				if err := c.Remove(r.Ctx); err != nil {
					t.Fatal(err)
				}
				if use.name == "volume" {
					r.MustRemovePod(pod) // the mount is removed with the pod
				} else {
					r.Collect()
					r.WantState("after the removal of the container", before)
					r.MustRemovePod(pod)
				}
			})
		}
	}
	t.Run("sandbox", func(t *testing.T) {
		r := r.In(t)
		pod := r.MustPod(testkit.Second)
		r.MustRemovePod(r.MustPod(""))
		pauseID := r.MustStatus(pause, "").GetId()
		r.MustRemove(pauseID, "")
		if r.MustStatus(pause, testkit.Second).GetId() != pauseID {
			t.Error("the sandbox image was removed for the handler of a sandbox")
		}
		if img := r.MustStatus(pause, "runc"); img != nil {
			t.Error("the sandbox image was not removed for a handler without a sandbox")
		}
		r.MustRemovePod(pod)
		r.MustRemove(pauseID, "")
		if img := r.MustStatus(pause, ""); img != nil {
			t.Error("the sandbox image was not removed")
		}
	})
}

// TestRemoveWhatIsMissing checks that the removal of a missing image is not an error and removes nothing else.
func TestRemoveWhatIsMissing(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	tag, digest := r.Push("app:v1", images.Options{}, images.HostPlatform())
	id := r.MustPull(tag, "")
	before := r.MustState()
	_, d, _ := strings.Cut(digest, "@")
	for _, name := range []string{
		r.Reg.Ref("app:v2"), r.Reg.Ref("other:v1"), r.Reg.Ref("other@" + d), "app", "no:such@reference",
		"sha256:" + strings.Repeat("0", 64), strings.Repeat("0", 12),
	} {
		for _, handler := range []string{"", "runc", testkit.Second} {
			if err := r.RemoveImage(r.Ctx, name, handler); err != nil {
				t.Errorf("removing %s for handler %q: %v", name, handler, err)
			}
		}
	}
	r.MustRemove(tag, testkit.Second) // is only on the node for the other handler
	r.WantState("after the removal of missing images", before)
	if r.MustStatus(tag, "runc").GetId() != id {
		t.Error("the image was removed")
	}
}

// TestRemoveDoesNotWaitForPull removes an image while a registry sends what one of its tags has moved to, and another one
// sends it for a second snapshotter. The removal does not wait, and the pulls succeed when the registry goes on.
func TestRemoveDoesNotWaitForPull(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{DiscardUnpackedLayers: true, Handlers: testkit.OnNative})
	opts := images.Options{Version: "old"}
	tag, _ := r.Push("a:v1", opts, images.HostPlatform())
	moved, _ := r.Push("b:v1", opts, images.HostPlatform())
	for _, handler := range []string{"", testkit.Second} {
		r.MustRemovePod(r.MustPod(handler)) // the sandbox image
	}
	r.Collect()
	before := r.MustState()
	id := r.MustPull(tag, "")
	r.MustPull(moved, "")
	r.Push("b:v1", images.Options{Version: "new"}, images.HostPlatform())
	r.Collect() // the layers, which the second snapshotter needs

	release := make(chan struct{})
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: release}, registry.Is("GET", registry.Blob)))
	pulls := map[string]string{tag: testkit.Second, moved: ""}
	ended := make(chan error, len(pulls))
	for ref, handler := range pulls {
		later := r.Reg.Later()
		go func() {
			_, err := r.Pull(r.Ctx, ref, handler)
			ended <- err
		}()
		if _, err := r.Reg.Wait(r.Ctx, registry.Is("GET", registry.Blob), later); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(r.Ctx, time.Minute) // passes only if the test fails
	defer cancel()
	if err := r.RemoveImage(ctx, id, ""); err != nil {
		t.Errorf("RemoveImage during pulls: %v", err)
	}
	r.WantNames(id, nil, nil)
	if err := r.RemoveImage(ctx, moved, ""); err != nil {
		t.Errorf("RemoveImage of a tag that is being pulled: %v", err)
	}
	select {
	case err := <-ended:
		t.Errorf("a pull ended before the registry went on: %v", err)
	default:
	}
	close(release)
	for range pulls {
		if err := <-ended; err != nil {
			t.Errorf("a pull during the removal: %v", err)
		}
	}
	if got := r.MustStatus(tag, testkit.Second).GetId(); got != id {
		t.Errorf("ImageStatus of the tag returned %q, want %s", got, id)
	}
	if got := r.MustStatus(moved, "").GetId(); got == id || got == "" {
		t.Errorf("ImageStatus of the moved tag returned %q, want the image that it has moved to", got)
	}
	r.MustRemove(id, "")
	r.MustRemove(moved, "")
	r.WantState("after the removals", before)
}

// TestPullAndRemoveAtOnce concurrently pulls and removes one image for two targets. All calls succeed, and the image
// can then run and be removed completely.
func TestPullAndRemoveAtOnce(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{DiscardUnpackedLayers: true, Handlers: testkit.OnNative})
	opts := images.Options{SingleLayer: true}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
	other, _ := r.Push("app:v2", opts, images.HostPlatform(), testkit.Foreign)
	pods := []*node.Pod{r.MustPod(""), r.MustPod(testkit.Second)}
	r.Collect()
	before := r.MustState()
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	for _, do := range []func() error{
		func() error { _, err := r.Pull(r.Ctx, tag, ""); return err },
		func() error { _, err := r.Pull(r.Ctx, other, testkit.Second); return err },
		func() error { return r.RemoveImage(r.Ctx, tag, "") },
		func() error { return r.RemoveImage(r.Ctx, other, testkit.Second) },
	} {
		wg.Go(func() {
			for range 15 {
				if err := do(); err != nil {
					errs <- err
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	r.MustPull(tag, "")
	r.MustPull(other, testkit.Second)
	r.Reg.Down()
	for i, ref := range []string{tag, other} {
		c := r.WantLine(pods[i], node.ContainerOptions{Image: ref}, opts.Line(0))
		if err := c.Remove(r.Ctx); err != nil {
			t.Fatal(err)
		}
	}
	r.MustRemove(tag, "")
	r.MustRemove(other, "")
	r.Collect()
	r.WantState("after the removals", before)
}

// TestRetag moves a tag between two pulls. As in stock containerd, the second pull moves the tag, and the older image
// stays listed by its digest.
func TestRetag(t *testing.T) {
	t.Parallel()
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		t.Parallel()
		r := testkit.NewRig(t, node.Options{Binary: binary, Handlers: testkit.OnNative})
		tag, first := r.Push("app:v1", images.Options{Version: "first"}, images.HostPlatform(), testkit.Foreign)
		before := r.MustState()
		record := func() string {
			i, err := r.Client().ImageService().Get(testkit.NSContext(r.Ctx), tag)
			if err != nil {
				t.Fatal(err)
			}
			return r.Reg.Ref("app@" + i.Target.Digest.String())
		}
		old := r.MustPull(tag, "")
		if binary == node.Ours {
			r.MustPull(tag, testkit.Second)
		}
		if got := record(); got != first {
			t.Errorf("the record of the tag targets %s, want %s", got, first)
		}
		_, newer := r.Push("app:v1", images.Options{Version: "newer"}, images.HostPlatform(), testkit.Foreign)
		id := r.MustPull(tag, "")
		if got := record(); got != newer {
			t.Errorf("the record of the moved tag targets %s, want %s", got, newer)
		}
		if binary == node.Ours {
			// The other snapshotter keeps the older image until a pull for it.
			r.WantNames(old, []string{tag}, []string{first})
			if got := r.MustStatus(tag, testkit.Second).GetId(); got != old {
				t.Errorf("ImageStatus of the tag returned %q for the other snapshotter, want %s", got, old)
			}
			r.MustPull(tag, testkit.Second)
		}
		r.WantNames(id, []string{tag}, []string{newer})
		r.WantNames(old, nil, []string{first})
		if got := r.MustStatus(tag, "").GetId(); got != id {
			t.Errorf("ImageStatus of the tag returned %q, want %s", got, id)
		}
		r.MustRemove(old, "")
		r.WantNames(old, nil, nil)
		r.WantNames(id, []string{tag}, []string{newer})
		r.MustRemove(tag, "")
		if binary == node.Ours {
			r.WantState("after the removals", before)
		}
	})
}
