package cri

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// withLog returns a context whose log is written to out.
func withLog(ctx context.Context, out *bytes.Buffer) context.Context {
	l := logrus.New()
	l.SetOutput(out)
	return log.WithLogger(ctx, logrus.NewEntry(l))
}

// entriesOf is a store with the same entries for every reference.
type entriesOf struct {
	Store
	entries []imagepin.Entry
}

func (s entriesOf) ByRef(string) []imagepin.Entry { return s.entries }

// TestLogOfUserIsBounded checks that a warning about images with long users has a bounded length. A user is in the
// configuration of an image, which has no limit.
func TestLogOfUserIsBounded(t *testing.T) {
	var out bytes.Buffer
	target := func(platform string) runtimeplatform.Target {
		return runtimeplatform.Target{Platform: platform, Snapshotter: "overlayfs"}
	}
	ref := "registry.example/" + strings.Repeat("n", 238) + ":" + strings.Repeat("t", 128)
	e := imagepin.Entry{
		Key: imagepin.Key{Ref: ref, Target: target("linux/amd64")}, ImageID: digest.FromString("a"), User: strings.Repeat("\x00a", 1<<20),
	}
	o := imagepin.Entry{
		Key: imagepin.Key{Ref: ref, Target: target("linux/arm64")}, ImageID: digest.FromString("b"), User: strings.Repeat("\x00b", 1<<20),
	}
	s := &imageCalls{base: &base{Config: Config{Store: entriesOf{entries: []imagepin.Entry{o}}}}}
	s.warnUserMismatch(withLog(t.Context(), &out), e)
	if out.Len() > 4<<10 || !strings.Contains(out.String(), "bytes cut") {
		t.Errorf("got a line of %d bytes, want a cut one of at most 4 KB: %.300s", out.Len(), out.String())
	}

	w := containerImage{spec: &runtime.ImageSpec{Image: digest.FromString("c").String()}, entry: e}
	_, name := upstream.ImageUser(e.User)
	config := &runtime.ContainerConfig{Linux: &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{RunAsUsername: name}}}
	if err := checkImageUser(config, w, o); err == nil || !strings.Contains(err.Error(), "of another image for it") {
		t.Errorf("got %.300v, want an error that says what happened", err)
	}
}

// failingPuller is a puller whose pulls fail.
type failingPuller struct {
	Puller
	err error
}

func (p failingPuller) Pull(context.Context, pull.Request) (pull.Pulled, error) {
	return pull.Pulled{}, p.err
}

// TestFailedPullIsLogged checks that each PullImage that fails is logged once, with the image and the error, also if it
// fails before the pull begins.
func TestFailedPullIsLogged(t *testing.T) {
	runtimes := ctdtest.Runtimes(t, "s")
	never := make(chan struct{})
	pod := &runtime.PodSandboxConfig{Metadata: &runtime.PodSandboxMetadata{Uid: "unknown"}}
	for _, test := range []struct {
		name  string
		ready <-chan struct{}
		list  error // of listing the sandboxes
		req   *runtime.PullImageRequest
		want  []string
	}{
		{"the index is not built", never, nil, &runtime.PullImageRequest{}, []string{"not initialized"}},
		{"the sandboxes cannot be listed", alwaysReady(), errors.New("no list"), &runtime.PullImageRequest{SandboxConfig: pod}, []string{"no list"}},
		{"the handler is unknown", alwaysReady(), nil, &runtime.PullImageRequest{Image: &runtime.ImageSpec{RuntimeHandler: "gone"}}, []string{"UnknownRuntimeHandler"}},
		{"the pull fails", alwaysReady(), nil, &runtime.PullImageRequest{}, []string{"no image", `target="linux/amd64 on s"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			ctx, cancel := context.WithCancel(withLog(t.Context(), &out))
			defer cancel()
			if test.ready == never {
				cancel()
			}
			s := New(Config{Upstream: Remote(nil), Ready: ctdtest.Always(test.ready), Runtimes: ctdtest.Always(runtimes), Puller: failingPuller{err: errors.New("no image")}})
			s.base.sandboxes = newSandboxes((&fakeSandboxes{err: test.list}).list, nil)
			if test.req.Image == nil {
				test.req.Image = &runtime.ImageSpec{}
			}
			test.req.Image.Image = pinnedTag
			err := s.guard(ctx, "PullImage", test.req, func() error {
				_, err := s.imageCalls.pullImage(ctx, test.req, nil)
				return err
			})
			if err == nil {
				t.Error("the pull succeeded")
			}
			for _, want := range append(test.want, "level=error", `msg="PullImage failed"`, `ref="`+pinnedTag+`"`) {
				if strings.Count(out.String(), want) != 1 {
					t.Errorf("got log %q, want %q once", out.String(), want)
				}
			}
		})
	}
	var out bytes.Buffer
	s := New(Config{Upstream: Remote(nil), Ready: alwaysReady})
	if err := s.guard(withLog(t.Context(), &out), "PullImage", &runtime.PullImageRequest{}, func() error { return nil }); err != nil || out.Len() > 0 {
		t.Errorf("a pull that succeeds: got %v, log %q, want none", err, out.String())
	}
}
