package claims

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestServer goes through the states of an API server: without ImagePins, without permissions for them, ready, killed and
// started again; and through those of a credential: rotated, expired.
func TestServer(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	s := startServer(t, cluster.Options{})
	r := newRig(t, s)
	node := s.clients[n1]
	pod := r.webPod("x", n1)
	owner := r.ownerOf(n1, pod)
	find := func() error {
		_, err := node.Find(ctx, *owner, tag, true)
		return err
	}
	unavailable := func(text string) {
		t.Helper()
		want(t, find(), imagepin.ClusterUnavailable, errdefs.ErrUnavailable, text)
	}
	// available waits for the end of the pause after a failure.
	available := func() {
		t.Helper()
		var last error
		defer func() {
			if t.Failed() {
				t.Log(last)
			}
		}()
		testkit.EventuallyIn(t, time.Minute, "the API server is available", func(context.Context) (bool, error) {
			last = find()
			return last == nil, nil
		})
	}

	unavailable(`cannot get resource "imagepins"`)
	_, _, err := node.Claim(ctx, *owner, pod, tag, digestA)
	want(t, err, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, "no request was sent so soon after a failure: the API server")
	permissions := len(manifests) - 1
	if err := s.InstallFiles(ctx, files(manifests[permissions])...); err != nil {
		t.Fatal(err)
	}
	testkit.EventuallyIn(t, time.Minute, "the node has the permission, but there are no ImagePins", func(context.Context) (bool, error) {
		err = find()
		return err == nil || strings.Contains(err.Error(), "does not serve ImagePins"), nil
	})
	want(t, err, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, "does not serve ImagePins")
	if err := s.install(ctx, manifests[:permissions]...); err != nil {
		t.Fatal(err)
	}
	available()
	first, created := r.claim(n1, owner, pod, digestA)
	if !created {
		t.Error("the claim did not create the pin")
	}

	if err := s.KillServer(); err != nil {
		t.Fatal(err)
	}
	unavailable("connection refused")
	unavailable("no request was sent so soon after a failure")
	if err := s.StartServer(ctx); err != nil {
		t.Fatal(err)
	}
	available()
	if pin, created := r.claim(n1, owner, pod, digestB); created || pin.UID != first.UID || pin.Digest != digestA {
		t.Errorf("got %+v, %v, want the pin from before the restart", pin, created)
	}

	// The credential expires, and is rotated after that. The next call succeeds.
	certificate := filepath.Join(filepath.Dir(s.kubeconfig(n1)), "client.pem")
	if err := s.WriteNodeCertificate(certificate, n1, time.Now().Add(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	testkit.EventuallyIn(t, time.Minute, "the certificate has expired", func(context.Context) (bool, error) {
		err = find()
		return err != nil, nil
	})
	want(t, err, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, "answered 401 Unauthorized")
	for range 3 {
		if err := s.WriteNodeCertificate(certificate, n1, time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := find(); err != nil {
			t.Errorf("after the rotation: %v", err)
		}
	}
}
