package decide

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// apiServer is an API server with one owner, web-1, and one image. It implements cluster.API, cluster.EventAPI and
// cluster.Observer.
type apiServer struct {
	mu     sync.Mutex
	away   bool
	pin    digest.Digest
	lost   int
	events chan kube.Event
}

// answer sets what the API server answers: nothing, or the digest of the ImagePin.
func (s *apiServer) answer(away bool, pinned digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.pin = away, pinned
}

func (s *apiServer) read() (digest.Digest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return "", errAway
	}
	return s.pin, nil
}

func (s *apiServer) OwnerOf(context.Context, kube.Pod) (*kube.Owner, error) {
	_, err := s.read()
	return &kube.Owner{Owner: v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "uid-1"}, Namespace: "shop"}, err
}

func (s *apiServer) ImagesOf(context.Context, kube.Pod) ([]kube.PodImage, error) { return nil, nil }

func (s *apiServer) Find(context.Context, kube.Owner, string, bool) (*kube.Pin, error) {
	d, err := s.read()
	if d == "" {
		return nil, err
	}
	return &kube.Pin{Digest: d, By: &v1alpha1.Claimer{Node: "other"}}, nil
}

func (s *apiServer) Claim(_ context.Context, _ kube.Owner, _ kube.Pod, _ string, d digest.Digest) (kube.Pin, bool, error) {
	now, err := s.read()
	if err != nil || now != "" {
		return kube.Pin{Digest: now, By: &v1alpha1.Claimer{Node: "other"}}, false, err
	}
	s.answer(false, d)
	return kube.Pin{Digest: d}, true, nil
}

func (s *apiServer) Report(_ context.Context, e kube.Event) error {
	s.events <- e
	return nil
}

func (s *apiServer) Claimed(o pin.Outcome, _ time.Duration) {
	if o == pin.Lost {
		s.Lost()
	}
}

func (s *apiServer) Lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost++
}

// losing is a node that has pinned "old" provisionally, for a pod of web-1.
type losing struct {
	*env
	server   *apiServer
	reporter *cluster.Reporter
	hook     *test.Hook
}

// newLosing returns a node that has pinned "old" while the API server was away. known reports that it knew the owner, so
// that the pin is the owner's.
func newLosing(t *testing.T, known bool) *losing {
	t.Helper()
	s := &apiServer{events: make(chan kube.Event, 64)}
	l := &losing{env: newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Workload}), server: s, reporter: cluster.NewReporter(s, 0)}
	l.ctx, l.hook = logged(l.ctx)
	ctx, cancel := context.WithCancel(l.ctx)
	var running sync.WaitGroup
	running.Go(func() { l.reporter.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	claims := cluster.NewClaims(cluster.ClaimsConfig{API: s, Observer: s, Reporter: l.reporter, Recheck: time.Minute})
	l.share(claims, false)
	if known {
		_, err := claims.Owner(l.ctx, webPod("web-1-a"))
		noError(t, err)
	}
	s.answer(true, "")
	l.wantPull(t, webPod("web-1-a"), "old")
	provisional := l.pins.Provisional()
	wantEqual(t, "provisional pins", len(provisional), 1)
	wantEqual(t, "a pin of the owner", provisional[0].Scope == firstScope, known)
	return l
}

func (l *losing) settle(t *testing.T) {
	for _, held := range l.pins.Provisional() {
		if err := l.authority.Settle(l.ctx, held); err != nil {
			t.Error(err)
		}
	}
}

// settlePrivate settles while the registry requires a credential that the node does not have.
func (l *losing) settlePrivate(t *testing.T) {
	l.registry.status.Store(401)
	for _, held := range l.pins.Provisional() {
		if err, waits := l.authority.Settle(l.ctx, held), new(cluster.WaitError); !errors.As(err, &waits) {
			t.Errorf("got %v, want that the pin waits for another pod", err)
		}
	}
	l.registry.status.Store(0)
}

func (l *losing) lookup(t *testing.T) {
	if _, err := l.request(l.ctx, l.ref, webPod("web-1-b")); err != nil {
		t.Error(err)
	}
}

func (l *losing) pullNext(t *testing.T) { l.wantPull(t, webPod("web-1-b"), "new") }

func (l *losing) container(t *testing.T) {
	held, err := l.pinUse(l.ctx, Used{Ref: l.ref, pod: webPod("web-1-b"), Root: roots["new"], Verified: true})
	if err != nil || version(held.Root.Digest) != "new" {
		t.Errorf("got %+v, %v, want the cluster's pin", held, err)
	}
}

// oldContainer creates a container whose image on the node is the one that was pinned provisionally.
func (l *losing) oldContainer(t *testing.T) {
	held, err := l.pinUse(l.ctx, Used{Ref: l.ref, pod: webPod("web-1-b"), Root: roots["old"], Verified: true})
	if err != nil || version(held.Root.Digest) != "new" {
		t.Errorf("got %+v, %v, want the cluster's pin", held, err)
	}
}

// ready makes the image of the cluster ready, as for another workload.
func (l *losing) ready(t *testing.T) {
	l.put(t, "new", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
}

// wantLost fails the test unless n events, n increments of the metric and n log lines report lost pins.
func (l *losing) wantLost(t *testing.T, n int) {
	t.Helper()
	// Events are sent in order: this one is the last.
	l.reporter.Drifted("shop", policy.Owner{UID: "last"}, "", "", "")
	var notes []string
	for e := range l.server.events {
		if e.Owner.UID == "last" {
			break
		}
		if e.Reason != "ImageClaimLost" {
			continue
		}
		notes = append(notes, e.Note)
		if e.Namespace != "shop" || e.Owner.Name != "web-1" || e.Owner.APIVersion != "apps/v1" {
			t.Errorf("got an event of %+v, want one of web-1", e.Owner)
		}
	}
	want := l.ref.String() + " resolved to " + roots["old"].Digest.String() + " for pod web-1-a2x9z, but node other has pinned it to " + roots["new"].Digest.String()
	if len(notes) != n || slices.ContainsFunc(notes, func(note string) bool { return !strings.HasPrefix(note, want) }) {
		t.Errorf("got events %q, want %d with %q", notes, n, want)
	}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	wantEqual(t, "metric", l.server.lost, n)
	lines := 0
	for _, entry := range l.hook.AllEntries() {
		if strings.HasPrefix(entry.Message, "another node has pinned the image meanwhile") {
			lines++
			wantEqual(t, "digest in the log", entry.Data["digest"], any(roots["new"].Digest))
			wantEqual(t, "previous digest in the log", entry.Data["previous"], any(roots["old"].Digest))
		}
	}
	wantEqual(t, "log lines", lines, n)
}

// TestProvisionalLost reports a provisional pin that gives way to the digest of another node once, whatever comes first.
func TestProvisionalLost(t *testing.T) {
	type step = func(*losing, *testing.T)
	for name, steps := range map[string][]step{
		"settle":                          {(*losing).settle},
		"lookup, settle":                  {(*losing).lookup, (*losing).settle},
		"lookup, pull, container":         {(*losing).lookup, (*losing).pullNext, (*losing).container},
		"lookup, pull, settle":            {(*losing).lookup, (*losing).pullNext, (*losing).settle},
		"pull, pull":                      {(*losing).pullNext, (*losing).pullNext},
		"container, pull, container":      {(*losing).oldContainer, (*losing).pullNext, (*losing).container},
		"container, settle":               {(*losing).oldContainer, (*losing).settle},
		"settle in vain, pull, container": {(*losing).settlePrivate, (*losing).pullNext, (*losing).container},
		"settle in vain, settle":          {(*losing).settlePrivate, (*losing).settlePrivate, (*losing).settle},
		"ready, lookup":                   {(*losing).ready, (*losing).lookup},
		"ready, container":                {(*losing).ready, (*losing).container},
		"lookup, ready, settle":           {(*losing).lookup, (*losing).ready, (*losing).settle},
	} {
		for _, known := range []bool{false, true} {
			t.Run(name+", the owner is "+map[bool]string{false: "not known", true: "known"}[known], func(t *testing.T) {
				l := newLosing(t, known)
				l.server.answer(false, roots["new"].Digest)
				l.registry.tag.Store("new")
				for _, step := range steps {
					step(l, t)
				}
				l.wantCopy(t, "new")
				for _, step := range []step{(*losing).pullNext, (*losing).container, (*losing).settle, (*losing).lookup} {
					step(l, t)
				}
				wantEqual(t, "provisional pins", len(l.pins.Provisional()), 0)
				l.wantLost(t, 1)
			})
		}
	}
}

// TestProvisionalLostAtOnce reports a lost pin once if a settle, pulls and containers find it at one time.
func TestProvisionalLostAtOnce(t *testing.T) {
	for _, known := range []bool{false, true} {
		l := newLosing(t, known)
		l.server.answer(false, roots["new"].Digest)
		l.registry.tag.Store("new")
		var running sync.WaitGroup
		for range 4 {
			running.Go(func() { l.settle(t) })
			running.Go(func() { l.pullNext(t) })
			running.Go(func() { l.container(t) })
		}
		running.Wait()
		l.lookup(t)
		l.wantCopy(t, "new")
		wantEqual(t, "provisional pins", len(l.pins.Provisional()), 0)
		l.wantLost(t, 1)
	}
}

// TestProvisionalAgreed reports nothing if the digest of the cluster is that of the provisional pin.
func TestProvisionalAgreed(t *testing.T) {
	for name, claimed := range map[string]digest.Digest{"by another node": roots["old"].Digest, "by this node": ""} {
		for _, known := range []bool{false, true} {
			l := newLosing(t, known)
			l.server.answer(false, claimed)
			l.lookup(t)
			l.wantPull(t, webPod("web-1-b"), "old")
			l.settle(t)
			l.wantCopy(t, "old")
			if left := l.pins.Provisional(); len(left) != 0 {
				t.Errorf("%s: got provisional pins %+v, want none", name, left)
			}
			l.wantLost(t, 0)
		}
	}
}

// TestProvisionalLostOfAnotherScope reports the pin of an owner that was deleted and created again meanwhile. Such a pin has
// the scope of the earlier owner.
func TestProvisionalLostOfAnotherScope(t *testing.T) {
	l := newLosing(t, false)
	held := l.pins.Provisional()[0]
	_, err := l.pins.Remove(l.ctx, held.ID)
	noError(t, err)
	earlier := pin.ID{Scope: policy.OwnerScope("shop", policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "uid-0"}), Ref: held.Ref}
	_, err = l.pins.MakeProvisional(l.ctx, earlier, held.Root, false, *held.Provisional)
	noError(t, err)
	l.server.answer(false, roots["new"].Digest)
	l.pullNext(t)
	l.settle(t)
	wantEqual(t, "provisional pins", len(l.pins.Provisional()), 0)
	l.wantLost(t, 1)
}
