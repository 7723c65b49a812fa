package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// wantState fails the test unless the node's state is what it was. RemoveImage frees what it removes before it returns, so that
// nothing has to be collected or waited for.
func (r *rig) wantState(when string, before *node.State) {
	r.t.Helper()
	if d := node.Diff(before, r.state()); d != "" {
		r.t.Errorf("%s the node's state is not what it was before (+ is leaked, - is lost):\n%s", when, d)
	}
}

// permutations of some names, few enough to try all.
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

// constellation is one image on the node under several names.
type constellation struct {
	name          string
	refs          []string // what is pulled
	tags, digests []string // what is listed then
}

// constellations pushes images that go by several names: two manifests of one config, one manifest in two repositories, and one
// under two tags and a digest.
func (r *rig) constellations(prefix string) []constellation {
	gzip := testkit.App(r.t, images.Options{Version: prefix + "-shared"})
	zstd := testkit.App(r.t, images.Options{Version: prefix + "-shared", Compression: images.Zstd})
	gzipTag, gzipDigest := r.pushImage(prefix+"-config:gzip", gzip)
	zstdTag, zstdDigest := r.pushImage(prefix+"-config:zstd", zstd)

	opts := images.Options{Version: prefix + "-repos"}
	oneTag, oneDigest := r.push(prefix+"-one:v1", opts, images.HostPlatform(), foreign)
	twoTag, twoDigest := r.push(prefix+"-two:v1", opts, images.HostPlatform(), foreign)

	opts = images.Options{Version: prefix + "-tags"}
	tag, digest := r.push(prefix+"-tags:v1", opts, images.HostPlatform(), foreign)
	other, _ := r.push(prefix+"-tags:stable", opts, images.HostPlatform(), foreign)
	return []constellation{
		{"two manifests of one config", []string{gzipTag, zstdTag}, []string{gzipTag, zstdTag}, []string{gzipDigest, zstdDigest}},
		{"one manifest in two repositories", []string{oneTag, twoTag}, []string{oneTag, twoTag}, []string{oneDigest, twoDigest}},
		{"two tags and a digest", []string{tag, other, digest}, []string{tag, other}, []string{digest}},
	}
}

// TestRemoveImageOfManyNames removes an image by each of its names. Each removes all of them, as CRI demands, and everything is freed.
func TestRemoveImageOfManyNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: onNative})
	before := r.state()
	for _, c := range r.constellations("rm") {
		t.Run(c.name, func(t *testing.T) {
			r := r.in(t)
			forms := slices.Concat(c.tags, c.digests, []string{"ID", "hex of the ID", "short ID", "tag@digest"})
			for i, name := range forms {
				var id string
				for j := range c.refs {
					// Another one is first each time: the records of what is shared must not depend on it.
					ref := c.refs[(i+j)%len(c.refs)]
					for _, handler := range []string{"", second}[:1+i%2] {
						got := r.pull(ref, handler)
						if id != "" && got != id {
							t.Fatalf("%s has image ID %s, not %s: not the constellation that is meant", ref, got, id)
						}
						id = got
					}
				}
				r.wantNames(id, c.tags, c.digests)
				for _, known := range slices.Concat(c.tags, c.digests) {
					if got := r.status(known, "").GetId(); got != id {
						t.Errorf("ImageStatus %s says %q, not %s", known, got, id)
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
				if got := r.status(name, "").GetId(); got != id {
					t.Errorf("ImageStatus %s says %q, not %s", name, got, id)
				}
				r.remove(name, "")
				r.wantNames(id, nil, nil)
				r.wantState("after the removal by "+name, before)
			}
		})
	}
}

// TestRemoveImageWithoutKeys removes an image that no key accounts for yet, as its layers are not there, by each of its names. All
// records of it go, as in stock containerd, also one whose name is no reference.
func TestRemoveImageWithoutKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true})
	tag, digest := r.push("app:v1", images.Options{}, images.HostPlatform(), foreign)
	other := r.reg.Ref("app:other")
	before := r.state()
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
			if out, err := r.Ctr(r.ctx, args...); err != nil {
				t.Fatalf("ctr %v: %v\n%s", args, err, out)
			}
		}
		// containerd's CRI labels a record when it handles its event. A record that is removed meanwhile is created again.
		var id string
		r.eventually("the image is listed, and its records are marked", func() bool {
			for id = range r.list() {
			}
			all, err := r.Client().ImageService().List(nsctx(r.ctx))
			return err == nil && id != "" && !slices.ContainsFunc(all, func(img ctdimages.Image) bool { return img.Labels["io.cri-containerd.image"] == "" })
		})
		hex := strings.TrimPrefix(id, "sha256:")
		r.remove(map[string]string{
			"tag": tag, "another tag": other, "digest": digest, "ID": id, "hex of the ID": hex, "short ID": hex[:10],
		}[form], "")
		// Layers may just be fetched for it, which adoption does.
		r.eventually("everything is freed after the removal by "+form, func() bool {
			left = fmt.Sprint(r.list(), node.Diff(before, r.state()))
			return len(r.list()) == 0 && node.Diff(before, r.state()) == ""
		})
	}
}

// TestRemoveNamesOneByOne removes the records of an image's tags with ctr, in every order: the image goes on under the names that
// are left, and can be started, until the last one.
func TestRemoveNamesOneByOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	pod := r.pod("")
	before := r.state()
	for _, c := range r.constellations("ctr") {
		t.Run(c.name, func(t *testing.T) {
			r := r.in(t)
			for _, order := range permutations(c.tags) {
				var id string
				for _, ref := range c.refs {
					id = r.pull(ref, "")
				}
				tags := slices.Clone(c.tags)
				for _, name := range order {
					if _, err := r.Ctr(r.ctx, "images", "rm", "--sync", name); err != nil {
						t.Fatal(err)
					}
					tags = slices.DeleteFunc(tags, func(t string) bool { return t == name })
					r.eventually("the image is listed as "+strings.Join(tags, ", "), func() bool {
						img := r.list()[id]
						return slices.Equal(img.GetRepoTags(), slices.Sorted(slices.Values(tags))) && len(img.GetRepoDigests()) == len(c.digests)
					})
					c, err := r.CreateContainer(r.ctx, pod, node.ContainerOptions{Image: id})
					if err != nil {
						t.Fatalf("after %s was removed: %v", name, err)
					}
					if err := c.Remove(r.ctx); err != nil {
						t.Fatal(err)
					}
				}
				r.remove(id, "")
				r.wantState("after the last name was removed", before)
			}
		})
	}
}

// TestRemoveTargetByTarget removes an image for one handler after the other, in every order: that snapshotter's snapshots and that
// platform's content are freed, what the others have stays and runs, and after the last nothing is left.
func TestRemoveTargetByTarget(t *testing.T) {
	t.Parallel()
	for _, discard := range []bool{false, true} {
		t.Run(fmt.Sprintf("discard=%t", discard), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, node.Options{
				DiscardUnpackedLayers: discard,
				Handlers:              append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...),
			})
			opts := images.Options{}
			tag, digest := r.push("app:v1", opts, images.HostPlatform(), foreign)
			platformOf := map[string]string{"runc": images.HostPlatform(), second: images.HostPlatform(), "foreign": foreign}
			pods := make(map[string]*node.Pod)
			for h := range platformOf {
				pods[h] = r.pod(h)
			}
			r.collect()
			before := r.state()
			for i, order := range permutations([]string{"runc", second, "foreign"}) {
				id := make(map[string]string)
				for h := range platformOf {
					id[h] = r.pull(tag, h)
				}
				all := r.state()
				for gone, handler := range order {
					r.remove([]string{tag, digest, id[handler]}[i%3], handler)
					if img := r.status(tag, handler); img != nil {
						t.Errorf("order %v: the image is there for %s after it was removed for it", order, handler)
					}
					for _, other := range order[gone+1:] {
						if got := r.status(tag, other).GetId(); got != id[other] {
							t.Errorf("order %v: after the removal for %s, ImageStatus for %s says %q, not %s", order, handler, other, got, id[other])
						}
						c := r.wantLine(pods[other], node.ContainerOptions{Image: tag}, line(opts, platformOf[other]))
						if err := c.Remove(r.ctx); err != nil {
							t.Fatal(err)
						}
					}
					state := r.state()
					for _, s := range []string{"overlayfs", "native"} {
						have, had := len(state.SnapshotsOf(s)), len(all.SnapshotsOf(s))
						if mine := s == "native" == (handler == second); mine != (have < had) {
							t.Errorf("order %v: the removal for %s left %d of %d snapshots in %s", order, handler, have, had, s)
						}
					}
					all = state
				}
				r.wantState("after the last target was removed", before)
			}
		})
	}
}

// TestRemoveWhatIsUsed removes an image by ID, as kubelet's image GC does, while something made of it is there: only targets that
// nothing uses lose it. Where all are used it goes from all, as stock does, and what runs goes on.
func TestRemoveWhatIsUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: append([]node.Handler{{Name: "foreign", Platform: foreign}}, onNative...)})
	pause := r.Options().SandboxImage
	opts := images.Options{SingleLayer: true}
	tag, _ := r.push("app:v1", opts, images.HostPlatform(), foreign)
	tool, _ := r.push("tool:v1", images.Options{Version: "tool"}, images.HostPlatform(), foreign)
	running := func(p *node.Pod) *node.Container {
		return r.wantLine(p, node.ContainerOptions{Image: tag}, line(opts, images.HostPlatform()))
	}
	exited := func(p *node.Pod) *node.Container {
		c := r.wantLine(p, node.ContainerOptions{Image: tag, Args: []string{"exit", "0"}}, "exiting 0")
		r.eventually("the container has exited", func() bool {
			s, err := c.Status(r.ctx)
			return err == nil && s.State == cri.ContainerState_CONTAINER_EXITED
		})
		return c
	}
	created := func(p *node.Pod) *node.Container {
		c, err := r.CreateContainer(r.ctx, p, node.ContainerOptions{Image: tag})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	volume := func(p *node.Pod) *node.Container {
		mount := &cri.Mount{ContainerPath: "/volume", Readonly: true, Image: &cri.ImageSpec{Image: tag}}
		c, err := r.CreateContainer(r.ctx, p, node.ContainerOptions{Image: tool, Mounts: []*cri.Mount{mount}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, use := range []struct {
		name string
		make func(*node.Pod) *node.Container
	}{{"running", running}, {"exited", exited}, {"created", created}, {"volume", volume}} {
		for _, user := range []string{"", second} {
			t.Run(use.name+" "+handlerName(user), func(t *testing.T) {
				r := r.in(t)
				unused := map[string]string{"": second, second: ""}[user]
				pod := r.pod(user)
				r.pull(tool, user)
				r.pull(tag, "foreign") // has another ID and is not meant
				r.collect()
				before := r.state()
				id := r.pull(tag, user)
				r.pull(tag, unused)
				c := use.make(pod)

				r.remove(id, "")
				if r.status(tag, handlerName(user)).GetId() != id {
					t.Errorf("the image is gone for the handler that uses it")
				}
				if img := r.status(tag, handlerName(unused)); img != nil {
					t.Errorf("the image is still there for the handler that does not use it")
				}
				r.remove(id, "")
				if img := r.status(tag, handlerName(user)); img != nil {
					t.Error("an image that all its targets use is not removed")
				}
				if r.status(tag, "foreign") == nil {
					t.Error("the image of another ID is gone")
				}
				if err := c.Remove(r.ctx); err != nil {
					t.Fatal(err)
				}
				if use.name == "volume" {
					r.removePod(pod) // what it mounted goes with the pod
				} else {
					r.collect()
					r.wantState("after the container is gone", before)
					r.removePod(pod)
				}
			})
		}
	}
	t.Run("sandbox", func(t *testing.T) {
		r := r.in(t)
		pod := r.pod(second)
		r.removePod(r.pod(""))
		pauseID := r.status(pause, "").GetId()
		r.remove(pauseID, "")
		if r.status(pause, second).GetId() != pauseID {
			t.Error("the sandbox image is gone for the handler of a sandbox")
		}
		if img := r.status(pause, "runc"); img != nil {
			t.Error("the sandbox image is still there for a handler without a sandbox")
		}
		r.removePod(pod)
		r.remove(pauseID, "")
		if img := r.status(pause, ""); img != nil {
			t.Error("the sandbox image is still there")
		}
	})
}

// TestRemoveWhatIsMissing removes what is not there, which is no error, and takes nothing else away.
func TestRemoveWhatIsMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{Handlers: onNative})
	tag, digest := r.push("app:v1", images.Options{}, images.HostPlatform())
	id := r.pull(tag, "")
	before := r.state()
	_, d, _ := strings.Cut(digest, "@")
	for _, name := range []string{
		r.reg.Ref("app:v2"), r.reg.Ref("other:v1"), r.reg.Ref("other@" + d), "app", "no:such@reference",
		"sha256:" + strings.Repeat("0", 64), strings.Repeat("0", 12),
	} {
		for _, handler := range []string{"", "runc", second} {
			if err := r.RemoveImage(r.ctx, name, handler); err != nil {
				t.Errorf("removing %s for handler %q: %v", name, handler, err)
			}
		}
	}
	r.remove(tag, second) // is there, but not for this one
	r.wantState("after removing what is missing", before)
	if r.status(tag, "runc").GetId() != id {
		t.Error("the image is gone")
	}
}

// TestRemoveWaitsForPull removes an image while it is pulled: the removal waits and then removes what came. Meanwhile it stands in
// nobody's way.
func TestRemoveWaitsForPull(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	opts := images.Options{Version: "old"}
	tag, _ := r.push("a:v1", opts, images.HostPlatform())
	moved, _ := r.push("b:v1", opts, images.HostPlatform())
	pod := r.pod("")
	before := r.state()
	id := r.pull(tag, "")
	r.pull(moved, "")
	r.push("b:v1", images.Options{Version: "new"}, images.HostPlatform())

	release := make(chan struct{})
	r.reg.SetFault(registry.FaultIf(registry.Fault{Hang: release}, registry.Is("GET", registry.Blob)))
	hangs := r.reg.Later()
	type result struct {
		id  string
		err error
	}
	pulled := make(chan result, 1)
	go func() {
		id, err := r.Pull(r.ctx, moved, "")
		pulled <- result{id, err}
	}()
	if _, err := r.reg.Wait(r.ctx, registry.Is("GET", registry.Blob), hangs); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{moved, id} {
		ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
		err := r.RemoveImage(ctx, name, "")
		cancel()
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("RemoveImage %s does not wait for the pull: %v", name, err)
		}
	}
	removed := make(chan error, 1)
	go func() { removed <- r.RemoveImage(r.ctx, id, "") }()
	// The removal waits for the pull of one of the image's names. Under the other one it can be pulled and run meanwhile.
	for range 20 {
		if got := r.pull(tag, ""); got != id {
			t.Errorf("pulled %s, not %s", got, id)
		}
		c, err := r.CreateContainer(r.ctx, pod, node.ContainerOptions{Image: tag})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Remove(r.ctx); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-removed:
		t.Errorf("RemoveImage returned %v while the image is being pulled", err)
	default:
	}
	close(release)
	p := <-pulled
	if p.err != nil {
		t.Fatal(p.err)
	}
	if err := <-removed; err != nil {
		t.Fatal(err)
	}
	r.wantNames(id, nil, nil)
	if got := r.status(moved, "").GetId(); got != p.id {
		t.Errorf("the name that was pulled meanwhile means %q, not %s", got, p.id)
	}
	r.remove(moved, "")
	r.wantState("after the removals", before)
}

// TestPullAndRemoveAtOnce pulls and removes one image again and again at the same time, for two targets. Every pull succeeds, and in
// the end nothing is broken and nothing is left.
func TestPullAndRemoveAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{DiscardUnpackedLayers: true, Handlers: onNative})
	opts := images.Options{SingleLayer: true}
	tag, _ := r.push("app:v1", opts, images.HostPlatform(), foreign)
	other, _ := r.push("app:v2", opts, images.HostPlatform(), foreign)
	pods := []*node.Pod{r.pod(""), r.pod(second)}
	r.collect()
	before := r.state()
	var wg sync.WaitGroup
	errs := make(chan error, 100)
	for _, do := range []func() error{
		func() error { _, err := r.Pull(r.ctx, tag, ""); return err },
		func() error { _, err := r.Pull(r.ctx, other, second); return err },
		func() error { return r.RemoveImage(r.ctx, tag, "") },
		func() error { return r.RemoveImage(r.ctx, other, second) },
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
	r.pull(tag, "")
	r.pull(other, second)
	r.reg.Down()
	for i, ref := range []string{tag, other} {
		c := r.wantLine(pods[i], node.ContainerOptions{Image: ref}, opts.Line(0))
		if err := c.Remove(r.ctx); err != nil {
			t.Fatal(err)
		}
	}
	r.remove(tag, "")
	r.remove(other, "")
	r.collect()
	r.wantState("after the removals", before)
}

// TestRetag moves a tag between pulls. As with stock, the tag is the new image's then, and the old one stays listed by its digest.
func TestRetag(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, binary string) {
		t.Parallel()
		r := newRig(t, node.Options{Binary: binary, Handlers: onNative})
		tag, first := r.push("app:v1", images.Options{Version: "first"}, images.HostPlatform(), foreign)
		before := r.state()
		record := func() string {
			i, err := r.Client().ImageService().Get(nsctx(r.ctx), tag)
			if err != nil {
				t.Fatal(err)
			}
			return r.reg.Ref("app@" + i.Target.Digest.String())
		}
		old := r.pull(tag, "")
		if binary == node.Ours {
			r.pull(tag, second)
		}
		if got := record(); got != first {
			t.Errorf("the tag's record targets %s, not %s", got, first)
		}
		_, newer := r.push("app:v1", images.Options{Version: "newer"}, images.HostPlatform(), foreign)
		id := r.pull(tag, "")
		if got := record(); got != newer {
			t.Errorf("after the tag moved its record targets %s, not %s", got, newer)
		}
		if binary == node.Ours {
			// The other snapshotter has what it was given until it is pulled for.
			r.wantNames(old, []string{tag}, []string{first})
			if got := r.status(tag, second).GetId(); got != old {
				t.Errorf("the tag means %q on the other snapshotter, not %s", got, old)
			}
			r.pull(tag, second)
		}
		r.wantNames(id, []string{tag}, []string{newer})
		r.wantNames(old, nil, []string{first})
		if got := r.status(tag, "").GetId(); got != id {
			t.Errorf("ImageStatus of the tag says %q, not %s", got, id)
		}
		r.remove(old, "")
		r.wantNames(old, nil, nil)
		r.wantNames(id, []string{tag}, []string{newer})
		r.remove(tag, "")
		if binary == node.Ours {
			r.wantState("after the removals", before)
		}
	})
}
