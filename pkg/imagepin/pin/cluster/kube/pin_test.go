package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// webPin is the object of a claim of webPod.
func webPin(image, d string) v1alpha1.ImagePin {
	owner := webOwner()
	return v1alpha1.ImagePin{
		TypeMeta: metav1.TypeMeta{APIVersion: "imagepin.io/v1alpha1", Kind: "ImagePin"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: v1alpha1.Name(owner.Owner, image), UID: "pin-1", OwnerReferences: []metav1.OwnerReference{owner.Reference},
			CreationTimestamp: metav1.NewTime(time.Unix(1700000000, 0)),
		},
		Spec: v1alpha1.ImagePinSpec{
			Image: image, Digest: d, Owner: owner.Owner, By: &v1alpha1.Claimer{Node: "n2", Pod: "web-7d4b9c-y", PodUID: "pod-2"},
		},
	}
}

func (a *apiServer) addPin(p v1alpha1.ImagePin) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pins[pinsPath+"/"+p.Name] = p
}

// addPinAt puts a changed pin of webOwner and tag under a name.
func (a *apiServer) addPinAt(name string, edit func(*v1alpha1.ImagePin)) {
	p := webPin(tag, digestB)
	edit(&p)
	p.Name = name
	a.addPin(p)
}

func TestFind(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	if pin, err := c.Find(t.Context(), webOwner(), tag, true); pin != nil || err != nil {
		t.Errorf("got %v and %v, want no pin", pin, err)
	}
	object := webPin(tag, digestB)
	a.addPin(object)
	pin, err := c.Find(t.Context(), webOwner(), tag, true)
	if err != nil {
		t.Fatal(err)
	}
	want := &Pin{Digest: digestB, By: object.Spec.By, CreatedAt: time.Unix(1700000000, 0), UID: "pin-1", Name: object.Name}
	pin.CreatedAt = pin.CreatedAt.Local()
	if !reflect.DeepEqual(pin, want) {
		t.Errorf("got %+v, want %+v", pin, want)
	}
	got := a.got()
	if len(got) != 2 || got[1].path != pinsPath+"/"+object.Name || got[1].query != "resourceVersion=0" || got[1].userAgent != "imagepin" {
		t.Errorf("got requests %+v, want two for the pin in the cache", got)
	}

	// One that a person created.
	object.Spec.By = nil
	a.addPin(object)
	if pin, err := c.Find(t.Context(), webOwner(), tag, true); err != nil || pin.By != nil || pin.Digest != digestB {
		t.Errorf("got %v and %v", pin, err)
	}
}

func TestClaim(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	pin, created, err := c.Claim(t.Context(), webOwner(), webPod, tag, digestA)
	if err != nil || !created {
		t.Fatalf("got %+v, %v and %v, want a created pin", pin, created, err)
	}
	by := &v1alpha1.Claimer{Node: nodeName, Pod: webPod.Name, PodUID: webPod.UID}
	object := a.pins[pinsPath+"/"+pin.Name]
	if pin.Digest != digestA || !reflect.DeepEqual(pin.By, by) || pin.UID != object.UID || pin.Name != v1alpha1.Name(webOwner().Owner, tag) {
		t.Errorf("got %+v", pin)
	}
	spec := v1alpha1.ImagePinSpec{Image: tag, Digest: digestA, Owner: webOwner().Owner, By: by}
	if !reflect.DeepEqual(object.Spec, spec) || !reflect.DeepEqual(object.OwnerReferences, []metav1.OwnerReference{webOwner().Reference}) {
		t.Errorf("the API server has %+v", object)
	}
	if got := methods(a.got()); !reflect.DeepEqual(got, []string{"POST selfsubjectreviews", "POST imagepins"}) {
		t.Errorf("got requests %v", got)
	}

	// The node's name is known now. Another pod of the revision gets the pin.
	pin, created, err = c.Claim(t.Context(), webOwner(), Pod{namespace, "web-7d4b9c-z", "pod-3"}, tag, digestB)
	if err != nil || created || pin.Digest != digestA || pin.By.Pod != webPod.Name {
		t.Errorf("got %+v, %v and %v, want the pin of the first", pin, created, err)
	}
	requests := a.got()
	if got := methods(requests); !reflect.DeepEqual(got, []string{"POST imagepins", "GET " + pin.Name}) || requests[1].query != "" {
		t.Errorf("got requests %v, want a claim and a read of etcd", requests)
	}
}

// TestClaimTwice checks that the second claim of a pod, also with the same digest, has not created the pin.
func TestClaimTwice(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	for _, want := range []bool{true, false, false} {
		pin, created, err := c.Claim(t.Context(), webOwner(), webPod, tag, digestA)
		if err != nil || created != want || pin.By.Pod != webPod.Name {
			t.Errorf("got %+v, %v and %v, want created %v", pin, created, err, want)
		}
	}
}

// methods returns the methods and the ends of the paths of requests.
func methods(requests []gotRequest) []string {
	var all []string
	for _, r := range requests {
		all = append(all, r.method+" "+r.path[strings.LastIndex(r.path, "/")+1:])
	}
	return all
}

// TestClaimsAtOnce checks that of many claims, one creates the pin, and all get it.
func TestClaimsAtOnce(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	const n = 20
	pins, created := make([]Pin, n), make([]bool, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var err error
			pod := Pod{namespace, fmt.Sprintf("web-7d4b9c-%d", i), "pod"}
			pins[i], created[i], err = c.Claim(t.Context(), webOwner(), pod, tag, digest.FromString(pod.Name))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	winners := 0
	for i := range n {
		if created[i] {
			winners++
		}
		if !reflect.DeepEqual(pins[i], pins[0]) {
			t.Errorf("got %+v and %+v", pins[i], pins[0])
		}
	}
	if winners != 1 {
		t.Errorf("%d claims created the pin, want 1", winners)
	}
}

// TestForeignPin checks that an object with the name of a pin is used only if it is that pin.
func TestForeignPin(t *testing.T) {
	name := v1alpha1.Name(webOwner().Owner, tag)
	for _, c := range []struct {
		name string
		edit func(*v1alpha1.ImagePin)
		text string
	}{
		{"image", func(p *v1alpha1.ImagePin) { p.Spec.Image = "registry.example.com/shop/other:v1" }, "is for the image registry.example.com/shop/other:v1"},
		{"owner", func(p *v1alpha1.ImagePin) { p.Spec.Owner.UID = "rs-0" }, "is for ReplicaSet web-7d4b9c with UID rs-0, not for ReplicaSet web-7d4b9c with UID rs-1"},
		{"group", func(p *v1alpha1.ImagePin) { p.Spec.Owner.APIVersion = "example.com/v1" }, "is for example.com/v1 ReplicaSet web-7d4b9c with UID rs-1, not for ReplicaSet web-7d4b9c with UID rs-1"},
		{"kind", func(p *v1alpha1.ImagePin) { p.Spec.Owner.Kind = "StatefulSet" }, "is for StatefulSet web-7d4b9c with UID rs-1, not for ReplicaSet"},
		{"revision", func(p *v1alpha1.ImagePin) { p.Spec.Owner.Revision = "abc" }, "UID rs-1, revision abc, not for"},
		{"digest", func(p *v1alpha1.ImagePin) { p.Spec.Digest = "sha256:0123" }, `has an invalid digest "sha256:0123"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := startServer(t)
			client, _ := a.client()
			a.addPinAt(name, c.edit)
			_, err := client.Find(t.Context(), webOwner(), tag, true)
			want(t, err, imagepin.ForeignPin, errdefs.ErrFailedPrecondition, c.text)
			_, created, err := client.Claim(t.Context(), webOwner(), webPod, tag, digestA)
			want(t, err, imagepin.ForeignPin, errdefs.ErrFailedPrecondition, c.text)
			if created {
				t.Error("the pin was created")
			}
			if !strings.Contains(err.Error(), "\nDelete it: kubectl delete imagepin -n shop "+name) || !strings.HasPrefix(err.Error(), "ForeignPin: "+tag+": ImagePin shop/"+name) {
				t.Errorf("got %v", err)
			}
			// It concerns this pin only.
			if pin, err := client.Find(t.Context(), webOwner(), "registry.example.com/shop/web:v8", true); pin != nil || err != nil {
				t.Errorf("another image: got %v and %v", pin, err)
			}
		})
	}
	// The version of the owner's API may differ between nodes, and the creator does not matter.
	a := startServer(t)
	client, _ := a.client()
	a.addPinAt(name, func(p *v1alpha1.ImagePin) { p.Spec.Owner.APIVersion, p.Spec.By = "apps/v2", nil })
	if pin, err := client.Find(t.Context(), webOwner(), tag, true); err != nil || pin == nil {
		t.Errorf("got %v and %v, want the pin", pin, err)
	}
}

// TestClaimOfDeletedPin checks claims of a pin that is deleted between the conflict and the read.
func TestClaimOfDeletedPin(t *testing.T) {
	conflict := apierrors.NewAlreadyExists(schema.GroupResource{Group: "imagepin.io", Resource: "imagepins"}, "x")
	quota := apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", fmt.Errorf("the object has been modified"))
	for _, c := range []struct {
		name      string
		conflict  *apierrors.StatusError
		conflicts int
		ok        bool
	}{
		{"once", conflict, 1, true},
		{"twice", conflict, 2, true},
		{"always", conflict, 100, false},
		{"conflict of a quota", quota, 1, true},
		{"conflicts of a quota", quota, 100, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := startServer(t)
			client, _ := a.client()
			posts := 0
			a.on(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != pinsPath {
					return false
				}
				posts++
				if posts <= c.conflicts {
					refuse(w, c.conflict)
					return true
				}
				return false
			})
			_, created, err := client.Claim(t.Context(), webOwner(), webPod, tag, digestA)
			if c.ok {
				if err != nil || !created {
					t.Errorf("got %v and %v, want a created pin", created, err)
				}
				return
			}
			wantUnavailable(t, err, "answered 409 Conflict")
			if posts != maxClaims {
				t.Errorf("%d claims, want %d", posts, maxClaims)
			}
			// It concerns this claim only.
			if _, err := client.Find(t.Context(), webOwner(), tag, true); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestClaimAfterAWait checks that a claim that the API server has asked to wait first reads whether another node has
// created the pin meanwhile, and knows its own pin.
func TestClaimAfterAWait(t *testing.T) {
	group := schema.GroupResource{Group: "imagepin.io", Resource: "imagepins"}
	const create, get = "POST imagepins", "GET web-7d4b9c.0696c75328"
	tooMany, failed := apierrors.NewTooManyRequests("later", 1), apierrors.NewServerTimeout(group, "create", 1)
	for _, c := range []struct {
		name     string
		answer   *apierrors.StatusError
		created  bool // by the request that was answered so
		other    bool // another node claims during the wait
		requests []string
	}{
		{name: "429", answer: tooMany, requests: []string{create, get, create}},
		{name: "429, and another node was first", answer: tooMany, other: true, requests: []string{create, get}},
		{name: "500 before the pin was created", answer: failed, requests: []string{create, get, create}},
		{name: "500 after the pin was created", answer: failed, created: true, requests: []string{create, get}},
		{name: "500, and another node was first", answer: failed, other: true, requests: []string{create, get}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := startServer(t)
			client, _ := a.client()
			waits := record(client)
			a.on(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != pinsPath || len(*waits) > 0 {
					return false
				}
				if c.created {
					a.mu.Lock()
					a.create(discard{}, r)
					a.mu.Unlock()
				}
				if c.other {
					a.addPin(webPin(tag, digestB))
				}
				refuse(w, c.answer)
				return true
			})
			pin, created, err := client.Claim(t.Context(), webOwner(), webPod, tag, digestA)
			if err != nil {
				t.Fatal(err)
			}
			if c.other && (created || pin.Digest != digestB) || !c.other && (!created || pin.Digest != digestA) {
				t.Errorf("got %+v and %v", pin, created)
			}
			requests := a.got()[1:] // the first one is for the name of the node
			if got := methods(requests); !slices.Equal(got, c.requests) {
				t.Errorf("requests %v, want %v", got, c.requests)
			}
			if got := requests[1].query; got != "resourceVersion=0" {
				t.Errorf("the read has the query %q", got)
			}
			if want := []time.Duration{time.Second}; !slices.Equal(*waits, want) {
				t.Errorf("waits %v, want %v", *waits, want)
			}
		})
	}
}

// TestClaimAfterAWaitWithoutRead checks that a claim does not depend on the read after a wait: if that fails, or finds what
// the claim knows to be old, the claim creates the pin.
func TestClaimAfterAWaitWithoutRead(t *testing.T) {
	group := schema.GroupResource{Group: "imagepin.io", Resource: "imagepins"}
	tooMany, exists := apierrors.NewTooManyRequests("later", 1), apierrors.NewAlreadyExists(group, "x")
	refused := func(err *apierrors.StatusError) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { refuse(w, err) }
	}
	found := func(image string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { respond(w, http.StatusOK, webPin(image, digestB)) }
	}
	absent := func(cached http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("resourceVersion") {
				cached(w, r)
				return
			}
			refuse(w, apierrors.NewNotFound(group, "x"))
		}
	}
	for _, c := range []struct {
		name  string
		posts []*apierrors.StatusError // answers to the first requests to create the pin
		read  http.HandlerFunc
	}{
		{"the read fails", []*apierrors.StatusError{tooMany}, refused(apierrors.NewInternalError(errors.New("x")))},
		{"the read is forbidden", []*apierrors.StatusError{tooMany}, refused(apierrors.NewForbidden(group, "x", errors.New("x")))},
		{"the cache has a foreign pin that was deleted", []*apierrors.StatusError{tooMany}, absent(found("registry.example.com/other:v1"))},
		{"the cache has a pin that was not in etcd", []*apierrors.StatusError{exists, tooMany}, absent(found(tag))},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := startServer(t)
			client, _ := a.client()
			record(client)
			posts := 0
			a.on(func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case r.URL.Path == pinsPath && posts < len(c.posts):
					posts++
					refuse(w, c.posts[posts-1])
				case strings.HasPrefix(r.URL.Path, pinsPath+"/"):
					c.read(w, r)
				default:
					return false
				}
				return true
			})
			pin, created, err := client.Claim(t.Context(), webOwner(), webPod, tag, digestA)
			if err != nil || !created || pin.Digest != digestA {
				t.Errorf("got %+v, %v and error %v, want a new pin", pin, created, err)
			}
		})
	}
}

// TestClaimWithLostAnswer checks that a claim whose answer is lost is sent again, and that it knows its own pin.
func TestClaimWithLostAnswer(t *testing.T) {
	for _, c := range []struct {
		name    string
		created bool // by the lost request
		other   bool // another node claims then
		half    bool // a part of the answer is not lost
	}{
		{name: "before the pin was created"}, {name: "after the pin was created", created: true}, {name: "another node was first", other: true},
		{name: "in the middle of the answer", created: true, half: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := startServer(t)
			client, _ := a.client()
			lost := false
			a.on(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != pinsPath || lost {
					return false
				}
				lost = true
				if c.created {
					a.mu.Lock()
					a.create(discard{}, r)
					a.mu.Unlock()
				}
				if c.other {
					a.addPin(webPin(tag, digestB))
				}
				if c.half {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusCreated)
					_, _ = w.Write([]byte(`{"kind":`))
					_ = http.NewResponseController(w).Flush()
				}
				drop(r)
				return true
			})
			pin, created, err := client.Claim(t.Context(), webOwner(), webPod, tag, digestA)
			if err != nil {
				t.Fatal(err)
			}
			if c.other && (created || pin.Digest != digestB) || !c.other && (!created || pin.Digest != digestA) {
				t.Errorf("got %+v and %v", pin, created)
			}
		})
	}
}

// discard is an http.ResponseWriter without a client.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

// TestPinForm checks that an ImagePin in the API keeps the form that other versions read.
func TestPinForm(t *testing.T) {
	a := startServer(t)
	c, _ := a.client()
	var body map[string]any
	a.on(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == pinsPath {
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			respond(w, http.StatusCreated, webPin(tag, digestA))
			return true
		}
		return false
	})
	if _, _, err := c.Claim(t.Context(), webOwner(), webPod, tag, digestA); err != nil {
		t.Fatal(err)
	}
	var form map[string]any
	if err := json.Unmarshal([]byte(`{
		"apiVersion": "imagepin.io/v1alpha1", "kind": "ImagePin",
		"metadata": {"namespace": "shop", "name": "`+v1alpha1.Name(webOwner().Owner, tag)+`",
			"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d4b9c", "uid": "rs-1", "blockOwnerDeletion": false}]},
		"spec": {"image": "`+tag+`", "digest": "`+digestA+`",
			"owner": {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d4b9c", "uid": "rs-1"},
			"by": {"node": "n1", "pod": "web-7d4b9c-x", "podUID": "pod-1"}}}`), &form); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(body, form) {
		t.Errorf("got  %v\nwant %v", body, form)
	}
}
