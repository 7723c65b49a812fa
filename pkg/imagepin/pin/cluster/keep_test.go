package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// unusedCopy returns a copy of an ImagePin.
func unusedCopy(name string) pin.Pin {
	scope := policy.OwnerScope("shop", policy.Owner{Kind: "ReplicaSet", Name: name, UID: "uid-" + name})
	return pin.Pin{ID: pin.ID{Scope: scope, Ref: image}, By: pin.ByCluster}
}

// TestKeep checks which unused pins stay, and how many requests that costs.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		c, seen := newClaims(a)
		k := keeper{exists: c.Exists}
		web, api := unusedCopy("web-1"), unusedCopy("api-1")
		provisional := unusedCopy("job-1")
		provisional.By, provisional.Provisional = pin.ByUse, &pin.Claimant{Name: "p", UID: "1"}
		others := []pin.Pin{
			provisional, {ID: pin.ID{Scope: policy.NodeScope, Ref: image}, By: pin.ByUse},
			{ID: pin.ID{Scope: policy.WorkloadScope("shop", "pod-template-hash", "1"), Ref: image}, By: pin.ByUse},
		}
		keep := func(what string, requests int, want ...pin.Pin) {
			t.Helper()
			before := a.count("find")
			got := k.Keep(t.Context(), append([]pin.Pin{web, api}, others...))
			kept := 0
			for _, stays := range got {
				if stays {
					kept++
				}
			}
			for _, p := range want {
				if !got[p.ID] {
					t.Errorf("%s: %s expires", what, p.Scope)
				}
			}
			if kept != len(want) {
				t.Errorf("%s: kept %v, want %d", what, got, len(want))
			}
			if n := a.count("find") - before; n != requests {
				t.Errorf("%s: %d requests, want %d", what, n, requests)
			}
		}

		a.set(one, nil)
		keep("the cluster has both", 2, web, api)
		keep("an hour later", 0, web, api)
		time.Sleep(confirmedFor)
		a.set("", errdefs.ErrUnavailable)
		keep("the API server does not answer", 1, web, api)
		a.set("", errdefs.ErrFailedPrecondition)
		keep("foreign ImagePins", 2, web, api)
		keep("an hour later", 0, web, api)
		time.Sleep(confirmedFor)
		a.set("", nil)
		keep("the revisions are deleted", 4) // the cache, and then etcd
		keep("they are still there", 4)
		a.set(one, nil)
		a.stale = true
		keep("only the cache does not have them", 4, web, api)
		seen.want(t, pin.Found, pin.Found, pin.Unavailable, pin.Refused, pin.Refused, pin.Missing, pin.Missing, pin.Missing, pin.Missing, pin.Found, pin.Found)
	})
}

// TestKeepIsCanceled checks that no pin expires because the node stops, and that nothing is remembered then.
func TestKeepIsCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	k := keeper{exists: func(context.Context, string, policy.Owner, string) (bool, error) {
		asked++
		cancel()
		return false, context.Canceled
	}}
	web, api := unusedCopy("web-1"), unusedCopy("api-1")
	if got := k.Keep(ctx, []pin.Pin{web, api}); !got[web.ID] || !got[api.ID] || asked != 1 || len(k.known()) != 0 {
		t.Errorf("kept %v after %d requests, remembered %v", got, asked, k.known())
	}
}

// TestExistsOfOtherOwner checks that an error of the API is returned, with the reason.
func TestExistsOfOtherOwner(t *testing.T) {
	a := newFakeAPI()
	a.set("", &imagepin.Error{Reason: imagepin.ForeignPin, Class: errdefs.ErrFailedPrecondition})
	c, _ := newClaims(a)
	if exists, err := c.Exists(t.Context(), "shop", policy.Owner{Kind: "Database", Name: "db", UID: "1"}, image); exists || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, %v", exists, err)
	}
}
