package restart

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/checker"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestDefaultSnapshotterMoves changes the default snapshotter of a node with a running pod, as
// docs/snapshotters.md describes it.
//
//   - The pod keeps running, and the images and pins of the node stay.
//   - If layers are kept, all images are unpacked in the new snapshotter without the registry. Otherwise only those that
//     a pin retains are, and the others are fetched when they are used first.
//   - What nothing uses any more is freed in the old snapshotter.
//   - The old snapshotter can be the default again, for stock containerd too.
func TestDefaultSnapshotterMoves(t *testing.T) {
	t.Parallel()
	for _, move := range [][2]string{{"overlayfs", node.EROFS}, {"overlayfs", "native"}, {"native", "overlayfs"}, {node.EROFS, "overlayfs"}} {
		for _, discard := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s to %s/discard=%t", move[0], move[1], discard), func(t *testing.T) {
				t.Parallel()
				m := newMove(t, move[0], move[1], discard)
				m.change()
				if discard {
					m.fetchOnFirstUse()
				} else {
					m.runAll("without the registry")
				}
				m.removeOldPod()
				m.back()
				m.removeAll()
			})
		}
	}
}

// moveRig is a node whose default snapshotter changes.
type moveRig struct {
	*testkit.Rig
	from, to string
	discard  bool
	empty    *node.State // without images
	// The images have one layer each that the others do not have. A pod runs the first one.
	used, idle, retained string // references
	lines                map[string]string
	listed               map[string]*cri.Image // before the change
	pod                  *node.Pod
	running              *node.Container
}

func newMove(t *testing.T, from, to string, discard bool) *moveRig {
	t.Helper()
	m := &moveRig{from: from, to: to, discard: discard, lines: make(map[string]string)}
	m.Rig = testkit.NewRig(t, node.WithEROFS(node.Options{Snapshotter: from, DiscardUnpackedLayers: discard, Extra: testkit.RetainRules}))
	m.empty = m.MustState()
	push := func(ref string) string {
		opts := images.Options{Version: ref}
		tag, _ := m.Push(ref, opts, images.HostPlatform(), testkit.Foreign)
		m.MustPull(tag, "")
		m.lines[tag] = opts.Line(0)
		return tag
	}
	m.retained = push("pinned/app:v1") // with all its layers, before the others share one of them
	m.used, m.idle = push("used:v1"), push("idle:v1")
	m.pod = m.MustPod("")
	m.running = m.WantLine(m.pod, node.ContainerOptions{Image: m.used}, m.lines[m.used])
	m.Collect()
	m.listed = testkit.WithoutSpec(m.ImagesByID())
	return m
}

// start restarts containerd with a default snapshotter, without the registry.
func (m *moveRig) start(binary, snapshotter string) {
	m.T.Helper()
	m.Reg.Reset()
	m.Reg.Down()
	m.KillAndRestart(func(o *node.Options) { o.Binary, o.Snapshotter = binary, snapshotter })
}

// change changes the default snapshotter.
func (m *moveRig) change() {
	m.T.Helper()
	pins := m.Pins(m.retained)
	m.start(node.Ours, m.to)
	testkit.WantSameImages(m.T, "when containerd is ready", m.listed, testkit.WithoutSpec(m.ImagesByID()))
	ready := []string{m.retained}
	if !m.discard {
		ready = append(ready, m.used, m.idle, m.Options().SandboxImage)
	}
	m.Eventually("images whose layers are on the node are unpacked in "+m.to, func() bool {
		return !slices.ContainsFunc(ready, func(ref string) bool { return m.MustStatus(ref, "runc") == nil })
	})
	m.wantListed("after the change")
	if m.discard {
		for _, ref := range []string{m.used, m.idle} {
			if img := m.MustStatus(ref, "runc"); img != nil {
				m.T.Errorf("ImageStatus of %s, which is not in %s: got %v", ref, m.to, img)
			}
		}
	}
	m.WantNoRequests("the change")
	if now := m.Pins(m.retained); len(now) != 1 || len(pins) != 1 || now["node"].GetRoot().GetDigest() != pins["node"].GetRoot().GetDigest() {
		m.T.Errorf("pins after the change: got %v, want %v", now, pins)
	}
	m.wantRunning()
}

// wantListed waits until the CRI lists the images from before the change.
func (m *moveRig) wantListed(when string) {
	m.T.Helper()
	same := func(a, b *cri.Image) bool { return proto.Equal(a, b) }
	m.Eventually("the images are listed as before "+when, func() bool {
		return maps.EqualFunc(testkit.WithoutSpec(m.ImagesByID()), m.listed, same)
	})
}

// wantRunning fails the test unless the container from before the change runs.
func (m *moveRig) wantRunning() {
	m.T.Helper()
	s, err := m.running.Status(m.Ctx)
	if err != nil || s.State != cri.ContainerState_CONTAINER_RUNNING {
		m.T.Errorf("the container from before the change: got %v, %v", s, err)
	}
	if got := m.Options().Snapshotter; got == m.to {
		// Its statistics are those of the snapshotter that it is in.
		stats, err := m.Runtime().ContainerStats(m.Ctx, &cri.ContainerStatsRequest{ContainerId: m.running.ID})
		if err != nil || stats.GetStats().GetWritableLayer().GetFsId().GetMountpoint() == "" {
			m.T.Errorf("statistics of the container from before the change: got %v, %v", stats, err)
		}
	}
}

// runAll runs all images without the registry.
func (m *moveRig) runAll(why string) {
	m.T.Helper()
	for _, ref := range []string{m.used, m.idle, m.retained} {
		m.WantRun("", ref, m.lines[ref])
	}
	m.WantLine(m.pod, node.ContainerOptions{Image: m.used}, m.lines[m.used]) // as after a crash of its container
	m.WantNoRequests("running images " + why)
}

// fetchOnFirstUse runs the image of the running pod, whose layers and those of the sandbox image are fetched by digest.
func (m *moveRig) fetchOnFirstUse() {
	m.T.Helper()
	if err := m.Reg.Up(); err != nil {
		m.T.Fatal(err)
	}
	m.WantRun("", m.used, m.lines[m.used])
	m.WantRequests("the first pod", "GET blob", "GET blob") // the pin retains the layer that the images share
	m.Collect()
	m.WantRun("", m.used, m.lines[m.used])
	m.WantRun("", m.retained, m.lines[m.retained])
	m.WantLine(m.pod, node.ContainerOptions{Image: m.used}, m.lines[m.used]) // as after a crash of its container
	m.WantNoRequests("running ready images")
}

// removeOldPod removes the pod from before the change, and checks what is left in its snapshotter: images that have not
// been used in the new one.
func (m *moveRig) removeOldPod() {
	m.T.Helper()
	m.wantRunning()
	m.MustRemovePod(m.pod)
	left := 0
	if m.discard {
		left = 2 // the layers of idle
	}
	m.Eventually("what nothing uses is freed in "+m.from, func() bool {
		m.Collect()
		return len(m.MustState().SnapshotsOf(m.from)) == left
	})
	m.wantListed("after the removal of the old pod")
	opts := checker.Options{Native: images.HostPlatform(), DiscardedLayers: m.discard}
	if problems, err := checker.Check(m.Ctx, m.Node, opts); err != nil || len(problems) > 0 {
		m.T.Errorf("checker: got problems %q, %v", problems, err)
	}
	for _, args := range [][]string{{"check"}, {"check", "--deep"}} {
		if out, ok := m.Command(args...); !ok {
			m.T.Errorf("imagepin %q: got\n%s", args, out)
		}
	}
}

// back makes the old snapshotter the default again, and stops using imagepin.
func (m *moveRig) back() {
	m.T.Helper()
	if m.discard {
		m.start(node.Ours, m.from)
		m.Eventually("the images that were not used since are ready", func() bool { return m.MustStatus(m.idle, "runc") != nil })
		m.wantListed("with the old default")
		if err := m.Reg.Up(); err != nil {
			m.T.Fatal(err)
		}
		m.WantRun("", m.idle, m.lines[m.idle])
		m.WantRequests("the sandbox image", "GET blob")
		m.WantRun("", m.used, m.lines[m.used])
	}
	m.start(node.Stock, m.from)
	want := testkit.WithoutSpec(m.listed)
	for _, img := range want {
		img.Pinned = img.Pinned && !slices.Contains(img.RepoTags, m.retained) // by imagepin, not by the CRI
	}
	testkit.WantSameImages(m.T, "with stock containerd", want, testkit.WithoutSpec(m.ImagesByID()))
	for _, ref := range []string{m.used, m.idle} {
		m.WantRun("", ref, m.lines[ref])
	}
}

// removeAll removes everything with imagepin and the new default.
func (m *moveRig) removeAll() {
	m.T.Helper()
	m.start(node.Ours, m.to)
	m.wantListed("with the new default again")
	if out, ok := m.Command("pin", "rm", m.retained); !ok {
		m.T.Errorf("imagepin pin rm: got\n%s", out)
	}
	for id := range m.ImagesByID() {
		m.MustRemove(id, "")
	}
	left := ""
	m.T.Cleanup(func() {
		if m.T.Failed() {
			m.T.Logf("left on the node:\n%s", left)
		}
	})
	m.Eventually("everything is freed", func() bool {
		m.Collect()
		left = node.Diff(m.empty, m.MustState())
		return left == ""
	})
}
