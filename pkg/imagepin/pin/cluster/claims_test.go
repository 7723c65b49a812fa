package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

const image = "registry.example/shop/web:v7"

var (
	one, two = digest.FromString("one"), digest.FromString("two")
	pod      = policy.Pod{Namespace: "shop", Name: "web-1-x2x9z", UID: "77"}
)

// fakeAPI is an API server with one owner. It counts requests, and answers after a delay.
type fakeAPI struct {
	mu     sync.Mutex
	pin    digest.Digest
	owner  *kube.Owner
	err    error
	delay  time.Duration
	asked  map[string]int
	images []kube.PodImage
	stale  bool // its cache has no pin
}

func newFakeAPI() *fakeAPI {
	owner := &kube.Owner{Owner: v1alpha1.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "1"}, Namespace: "shop"}
	return &fakeAPI{owner: owner, asked: make(map[string]int)}
}

func (a *fakeAPI) answer(ctx context.Context, what string) error {
	a.mu.Lock()
	a.asked[what]++
	err, delay := a.err, a.delay
	a.mu.Unlock()
	select {
	case <-time.After(delay):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *fakeAPI) OwnerOf(ctx context.Context, _ kube.Pod) (*kube.Owner, error) {
	if err := a.answer(ctx, "owner"); err != nil {
		return nil, err
	}
	return a.owner, nil
}

func (a *fakeAPI) ImagesOf(ctx context.Context, _ kube.Pod) ([]kube.PodImage, error) {
	return a.images, a.answer(ctx, "images")
}

func (a *fakeAPI) Find(ctx context.Context, _ kube.Owner, _ string, cached bool) (*kube.Pin, error) {
	if err := a.answer(ctx, "find"); err != nil || a.get() == "" || cached && a.stale {
		return nil, err
	}
	return &kube.Pin{Digest: a.get(), By: &v1alpha1.Claimer{Node: "n1"}}, nil
}

func (a *fakeAPI) Claim(ctx context.Context, _ kube.Owner, p kube.Pod, _ string, d digest.Digest) (kube.Pin, bool, error) {
	if err := a.answer(ctx, "claim"); err != nil {
		return kube.Pin{}, false, err
	}
	if p.Name != pod.Name || p.UID != types.UID(pod.UID) {
		return kube.Pin{}, false, errors.New("claimed for another pod")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	created := a.pin == ""
	if created {
		a.pin = d
	}
	return kube.Pin{Digest: a.pin}, created, nil
}

func (a *fakeAPI) get() digest.Digest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pin
}

func (a *fakeAPI) set(d digest.Digest, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pin, a.err = d, err
}

func (a *fakeAPI) count(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[what]
}

// outcomes records what the observer is notified of.
type outcomes struct {
	mu  sync.Mutex
	all []pin.Outcome
}

func (o *outcomes) Claimed(outcome pin.Outcome, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, outcome)
}

func (o *outcomes) Lost() { o.Claimed(pin.Lost, 0) }

func (o *outcomes) want(t *testing.T, want ...pin.Outcome) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Equal(o.all, want) {
		t.Errorf("got outcomes %v, want %v", o.all, want)
	}
	o.all = nil
}

func newClaims(a *fakeAPI) (*Claims, *outcomes) {
	o := &outcomes{}
	return NewClaims(ClaimsConfig{API: a, Observer: o, Reporter: NewReporter(nil, 0), Recheck: time.Minute}), o
}

func (a *fakeAPI) wantAsked(t *testing.T, owner, find, claim int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if got := [3]int{a.asked["owner"], a.asked["find"], a.asked["claim"]}; got != [3]int{owner, find, claim} {
		t.Errorf("got %d, %d and %d requests for the owner, the pin and a claim, want %d, %d and %d", got[0], got[1], got[2], owner, find, claim)
	}
}

// known is what is known of the ImagePin for the owner of a pod.
func known(c *Claims, pod policy.Pod) (Pinned, bool) {
	pod.Owner, _ = c.KnownOwner(pod)
	return c.Known(pod, image)
}

// TestClaim finds no pin, claims it, and uses it without further requests until it is to be read again.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		c, o := newClaims(a)
		if d, err := c.Lookup(t.Context(), pod, image, false); err != nil || d != "" {
			t.Fatalf("got %s, %v, want no pin", d, err)
		}
		if d, err := c.Claim(t.Context(), pod, image, one); err != nil || d != one {
			t.Fatalf("got %s, %v, want %s", d, err, one)
		}
		if d, err := c.Claim(t.Context(), pod, image, two); err != nil || d != one {
			t.Errorf("second claim: got %s, %v, want %s", d, err, one)
		}
		a.wantAsked(t, 1, 1, 1)
		a.set(two, nil)
		time.Sleep(59 * time.Second)
		if d, err := c.Lookup(t.Context(), pod, image, false); err != nil || d != one {
			t.Errorf("within recheck: got %s, %v, want %s", d, err, one)
		}
		a.wantAsked(t, 1, 1, 1)
		time.Sleep(time.Second)
		if d, err := c.Lookup(t.Context(), pod, image, false); err != nil || d != two {
			t.Errorf("after recheck: got %s, %v, want %s", d, err, two)
		}
		a.wantAsked(t, 1, 2, 1)
		a.set("", nil)
		time.Sleep(time.Minute) // then it asks twice, because the API server's cache can be stale
		if d, err := c.Lookup(t.Context(), pod, image, false); err != nil || d != "" {
			t.Errorf("removed: got %s, %v, want none", d, err)
		}
		if known, ok := known(c, pod); ok {
			t.Errorf("removed: still known as %+v", known)
		}
		o.want(t, pin.Missing, pin.Won, pin.Found, pin.Missing)
	})
}

// TestLost returns the digest of the node that was first.
func TestLost(t *testing.T) {
	a := newFakeAPI()
	c, o := newClaims(a)
	a.set(two, nil)
	if d, err := c.Claim(t.Context(), pod, image, one); err != nil || d != two {
		t.Errorf("got %s, %v, want %s", d, err, two)
	}
	other, p := newClaims(a)
	if d, err := other.Claim(t.Context(), pod, image, two); err != nil || d != two {
		t.Errorf("got %s, %v, want %s", d, err, two)
	}
	o.want(t, pin.Lost)
	p.want(t, pin.Agreed)
}

// TestLostProvisional reports a lost provisional pin when it has moved, not when it is claimed.
func TestLostProvisional(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, o, events := newFakeAPI(), &outcomes{}, &fakeEvents{}
		r := NewReporter(events, EventDelay)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go r.Run(ctx)
		c := NewClaims(ClaimsConfig{API: a, Observer: o, Reporter: r, Recheck: time.Minute})
		a.set(two, nil)
		for range 2 {
			if d, err := c.ClaimProvisional(t.Context(), pod, image, one); err != nil || d != two {
				t.Errorf("got %s, %v, want %s", d, err, two)
			}
		}
		a.wantAsked(t, 1, 0, 1)
		o.want(t, pin.Found)
		time.Sleep(EventDelay)
		synctest.Wait()
		if got := events.got(); len(got) != 0 {
			t.Errorf("got events %+v before the pin has moved", got)
		}
		owned := pod
		owned.Owner, _ = c.KnownOwner(pod)
		c.Lost(owned, image, one, Pinned{Digest: two, Node: "n1"})
		o.want(t, pin.Lost)
		time.Sleep(EventDelay)
		synctest.Wait()
		want := image + " resolved to " + one.String() + " for pod " + pod.Name + ", but node n1 has pinned it to " + two.String() + " for this revision"
		if got := events.got(); len(got) != 1 || got[0].Reason != "ImageClaimLost" || got[0].Note != want || got[0].Owner.Name != "web-1" || got[0].Namespace != "shop" {
			t.Errorf("got %+v, want %q", got, want)
		}
	})
}

// TestWonProvisional claims a provisional pin.
func TestWonProvisional(t *testing.T) {
	a := newFakeAPI()
	c, o := newClaims(a)
	if d, err := c.ClaimProvisional(t.Context(), pod, image, one); err != nil || d != one {
		t.Errorf("got %s, %v, want %s", d, err, one)
	}
	other, p := newClaims(a)
	if d, err := other.ClaimProvisional(t.Context(), pod, image, one); err != nil || d != one {
		t.Errorf("got %s, %v, want %s", d, err, one)
	}
	o.want(t, pin.Won)
	p.want(t, pin.Agreed)
}

// TestMerged sends one request for calls at one time.
func TestMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		a.delay = time.Second
		c, _ := newClaims(a)
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				if _, err := c.Lookup(t.Context(), pod, image, false); err != nil {
					t.Error(err)
				}
				if d, err := c.Claim(t.Context(), pod, image, one); err != nil || d != one {
					t.Errorf("got %s, %v, want %s", d, err, one)
				}
			})
		}
		calls.Wait()
		a.wantAsked(t, 1, 1, 1)
	})
}

// TestUnavailable fails while the API server does not answer, and keeps what was read.
func TestUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		a.set(one, nil)
		c, o := newClaims(a)
		if _, err := c.Lookup(t.Context(), pod, image, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		a.set(one, errdefs.ErrUnavailable)
		if _, err := c.Lookup(t.Context(), pod, image, false); !errdefs.IsUnavailable(err) {
			t.Errorf("got %v, want ErrUnavailable", err)
		}
		if p, ok := known(c, pod); !ok || p.Digest != one || p.Node != "n1" {
			t.Errorf("got %+v, want what was read", p)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		a.delay = time.Hour
		if _, err := c.Lookup(ctx, pod, image, false); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that the caller has gone", err)
		}
		o.want(t, pin.Found, pin.Unavailable)
	})
}

// TestOwner remembers owners, and that a pod has none, but not failures.
func TestOwner(t *testing.T) {
	for name, test := range map[string]struct {
		owner *kube.Owner
		err   error
		asked int
		fails bool
	}{
		"owner":     {newFakeAPI().owner, nil, 1, false},
		"no owner":  {nil, nil, 1, false},
		"no pod":    {nil, errdefs.ErrNotFound, 2, false},
		"no name":   {nil, errdefs.ErrInvalidArgument, 2, false},
		"forbidden": {nil, errdefs.ErrPermissionDenied, 2 * (1 + boundRetries), true},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newFakeAPI()
			a.owner, a.err = test.owner, test.err
			c, _ := newClaims(a)
			for range 2 {
				owner, err := c.Owner(t.Context(), pod)
				if (err != nil) != test.fails || (owner != nil) != (test.owner != nil) {
					t.Errorf("%s: got %+v, %v", name, owner, err)
				}
			}
			a.wantAsked(t, test.asked, 0, 0)
			if known, _ := c.KnownOwner(pod); (known != nil) != (test.owner != nil) {
				t.Errorf("%s: got known owner %+v", name, known)
			}
		})
	}
}

// TestNamespaces keeps pods of two namespaces apart that have one owner, which a tenant can write into the pods of its own.
func TestNamespaces(t *testing.T) {
	a := newFakeAPI()
	c, _ := newClaims(a)
	a.set(two, nil)
	other := policy.Pod{Namespace: "evil", Name: "web-1-abcde", UID: "78"}
	if d, err := c.Lookup(t.Context(), other, image, false); err != nil || d != two {
		t.Fatalf("got %s, %v, want %s", d, err, two)
	}
	if p, ok := known(c, pod); ok {
		t.Errorf("got %+v in another namespace", p)
	}
	a.set(one, nil)
	if d, err := c.Lookup(t.Context(), pod, image, false); err != nil || d != one {
		t.Errorf("got %s, %v, want %s", d, err, one)
	}
}

// TestPodIsGone does not count that the API server refuses to return a pod that is gone, or a claim for it.
func TestPodIsGone(t *testing.T) {
	a := newFakeAPI()
	c, o := newClaims(a)
	known, gone := pod, policy.Pod{Namespace: "shop", Name: "web-1-b7d8f", UID: "78", MayBeGone: true}
	if _, err := c.Owner(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	a.set("", errdefs.ErrPermissionDenied)
	if _, err := c.Owner(t.Context(), gone); !errdefs.IsPermissionDenied(err) {
		t.Errorf("owner: got %v, want ErrPermissionDenied", err)
	}
	o.want(t)
	if _, err := c.ClaimProvisional(t.Context(), known, image, one); !errdefs.IsPermissionDenied(err) {
		t.Errorf("claim: got %v, want ErrPermissionDenied", err)
	}
	o.want(t, pin.Refused)
	known.MayBeGone = true
	if _, err := c.ClaimProvisional(t.Context(), known, image, one); !errdefs.IsPermissionDenied(err) {
		t.Errorf("claim: got %v, want ErrPermissionDenied", err)
	}
	o.want(t)
	a.set("", errdefs.ErrUnavailable)
	if _, err := c.Owner(t.Context(), gone); !errdefs.IsUnavailable(err) {
		t.Errorf("owner: got %v, want ErrUnavailable", err)
	}
	o.want(t, pin.Unavailable)
}

// TestStaleCache does not take an ImagePin for deleted that the API server's cache does not have yet.
func TestStaleCache(t *testing.T) {
	for name, known := range map[string]bool{"read before": true, "copied": false} {
		synctest.Test(t, func(t *testing.T) {
			a := newFakeAPI()
			c, o := newClaims(a)
			if known {
				if _, err := c.Claim(t.Context(), pod, image, one); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				o.want(t, pin.Won)
			} else {
				a.set(one, nil)
			}
			a.stale = true
			if d, err := c.Lookup(t.Context(), pod, image, !known); err != nil || d != one {
				t.Errorf("%s: got %s, %v, want %s", name, d, err, one)
			}
			o.want(t, pin.Found)
		})
	}
}

// TestLateAnswer keeps a claim whose answer came while another question, which did not find it, was on its way.
func TestLateAnswer(t *testing.T) {
	const lookupAt, lookedUp = 200 * time.Millisecond, time.Second
	for name, claimAt := range map[string]time.Duration{"asked before": 0, "asked after": 500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			a := newFakeAPI()
			c, _ := newClaims(a)
			if _, err := c.Owner(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			a.stale = true
			after := func(d, delay time.Duration) {
				time.Sleep(d)
				a.mu.Lock()
				defer a.mu.Unlock()
				a.delay = delay
			}
			var calls sync.WaitGroup
			calls.Go(func() {
				after(claimAt, lookedUp-100*time.Millisecond-claimAt)
				if _, err := c.Claim(t.Context(), pod, image, one); err != nil {
					t.Error(err)
				}
			})
			calls.Go(func() {
				after(lookupAt, lookedUp-lookupAt)
				if d, err := c.Lookup(t.Context(), pod, image, false); err != nil || d != "" {
					t.Errorf("%s: got %s, %v, want no pin", name, d, err)
				}
			})
			calls.Wait()
			if p, ok := known(c, pod); !ok || p.Digest != one {
				t.Errorf("%s: got %+v, want the claim", name, p)
			}
		})
	}
}

// TestMissingIsRemembered asks once whether there is an ImagePin if a pod asks twice within a second, as kubelet does before
// it pulls.
func TestMissingIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		c, _ := newClaims(a)
		lookup := func(what string, uid string, copied bool, want digest.Digest, asked int) {
			t.Helper()
			p := pod
			p.UID = uid
			before := a.asked["find"]
			if d, err := c.Lookup(t.Context(), p, image, copied); err != nil || d != want {
				t.Errorf("%s: got %s, %v, want %q", what, d, err, want)
			}
			if n := a.asked["find"] - before; n != asked {
				t.Errorf("%s: got %d requests, want %d", what, n, asked)
			}
		}
		lookup("first", pod.UID, false, "", 1)
		lookup("again", pod.UID, false, "", 0)
		lookup("another pod", "78", false, "", 1)
		lookup("with a copy", pod.UID, true, "", 2)
		time.Sleep(missing)
		a.set(one, nil)
		lookup("later", pod.UID, false, one, 1)
	})
}
