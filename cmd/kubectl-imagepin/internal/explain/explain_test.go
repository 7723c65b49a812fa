package explain

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/registry"
)

const (
	image   = "docker.io/shop/web:v7"
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var owner = v1alpha1.Owner{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "1"}

func template(image string) *corev1.PodSpec {
	return &corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: image}}}
}

func pod(name, image, imageID string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *template(image),
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web", ImageID: imageID}}},
	}
}

func pin(digest string) v1alpha1.ImagePin {
	return v1alpha1.ImagePin{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Name(owner, image)},
		Spec:       v1alpha1.ImagePinSpec{Image: image, Digest: digest, Owner: owner, By: &v1alpha1.Claimer{Node: "n1", Pod: "web-x"}},
	}
}

func TestPinThatApplies(t *testing.T) {
	other := pin(digestB)
	other.Name = "web.0000000000"
	for _, tc := range []struct {
		name string
		rev  Revision
		want string // the digest
	}{
		{"a tag", Revision{Owner: &owner, Template: template("shop/web:v7"), Pins: []v1alpha1.ImagePin{other, pin(digestA)}}, digestA},
		{"a tag without an ImagePin", Revision{Owner: &owner, Template: template("shop/web:v8"), Pins: []v1alpha1.ImagePin{pin(digestA)}}, ""},
		{"a digest", Revision{Owner: &owner, Template: template("shop/web:v7@" + digestA), Pins: []v1alpha1.ImagePin{pin(digestA)}}, ""},
		{"no controller", Revision{Template: template("shop/web:v7")}, ""},
		{"an invalid image", Revision{Owner: &owner, Template: template("Web")}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Of(tc.rev).Containers[0]
			if tc.want == "" {
				if c.Pin != nil || c.Reason == "" {
					t.Errorf("got %+v, %q, want no ImagePin and a reason", c.Pin, c.Reason)
				}
				return
			}
			if c.Pin == nil || c.Pin.Digest != tc.want || c.Pin.By.Node != "n1" || c.Reason != "" {
				t.Errorf("got %+v, %q, want digest %s of n1", c.Pin, c.Reason, tc.want)
			}
		})
	}
}

func TestRunning(t *testing.T) {
	rev := Revision{
		Owner: &owner, Template: template("shop/web:v7"), Pins: []v1alpha1.ImagePin{pin(digestA)},
		Pods: []corev1.Pod{
			pod("1", "shop/web:v7", "shop/web@"+digestA), pod("2", "shop/web:v7@"+digestB, "shop/web@"+digestB),
			pod("3", "shop/web:v7", digestB), pod("4", "shop/web:v7", ""),
		},
	}
	running := Of(rev).Containers[0].Running
	if len(running) != 3 {
		t.Fatalf("got %+v, want three digests", running)
	}
	for _, r := range running {
		var want *bool
		switch r.Pods[0].Name {
		case "1":
			want = new(bool)
		case "2":
			yes := true
			want = &yes
		}
		if (r.Differs == nil) != (want == nil) || want != nil && *r.Differs != *want {
			t.Errorf("%+v: differs is %v", r.Build, r.Differs)
		}
	}
	rev.Pins = nil
	for _, r := range Of(rev).Containers[0].Running {
		if r.Differs != nil {
			t.Errorf("%+v differs from no ImagePin", r.Build)
		}
	}
}

// The pods of a kind without a known template name the containers. Each image has an entry of its own.
func TestContainersOfPods(t *testing.T) {
	e := Of(Revision{Owner: &owner, Pods: []corev1.Pod{
		pod("1", "shop/web:v7", "shop/web@"+digestA), pod("2", "shop/web:v7", "shop/web@"+digestA), pod("3", "shop/web:v8", "shop/web@"+digestB),
	}})
	if len(e.Containers) != 2 {
		t.Fatalf("got %+v, want two containers", e.Containers)
	}
	for i, pods := range []int{2, 1} {
		if r := e.Containers[i].Running; len(r) != 1 || len(r[0].Pods) != pods {
			t.Errorf("%s: got %+v, want %d pods", e.Containers[i].Image, r, pods)
		}
	}
}

func TestMoved(t *testing.T) {
	manager := func(name, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: name, Time: &metav1.Time{}, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const digest, label = `{"f:spec":{"f:digest":{}}}`, `{"f:metadata":{"f:labels":{"f:a":{}}}}`
	for _, tc := range []struct {
		name       string
		generation int64
		managers   []metav1.ManagedFieldsEntry
		want       string
	}{
		{"created", 1, []metav1.ManagedFieldsEntry{manager("imagepin", digest)}, ""},
		{"labeled", 1, []metav1.ManagedFieldsEntry{manager("kubectl", label), manager("imagepin", digest)}, ""},
		{"moved", 2, []metav1.ManagedFieldsEntry{manager("imagepin", label), manager("kubectl-imagepin", digest)}, "kubectl-imagepin"},
		{"unreadable", 2, []metav1.ManagedFieldsEntry{manager("x", "{"), {Manager: "y"}}, ""},
	} {
		p := pin(digestA)
		p.Generation, p.ManagedFields = tc.generation, tc.managers
		got := Of(Revision{Owner: &owner, Template: template("shop/web:v7"), Pins: []v1alpha1.ImagePin{p}}).Containers[0].Pin.Moved
		if (got == nil) != (tc.want == "") || got != nil && got.Manager != tc.want {
			t.Errorf("%s: got %+v, want %q", tc.name, got, tc.want)
		}
	}
}

func TestTags(t *testing.T) {
	template := template("shop/web:v7")
	template.Containers = append(template.Containers, corev1.Container{Name: "other", Image: "shop/web:v8"})
	rev := Revision{Owner: &owner, Template: template, Pins: []v1alpha1.ImagePin{pin(digestA)}}
	yes := true
	for _, tc := range []struct {
		name   string
		result registry.Result
		want   Tag
	}{
		{"moved", registry.Result{Digest: digestB}, Tag{Digest: digestB, Differs: &yes}},
		{"same", registry.Result{Digest: digestA}, Tag{Digest: digestA, Differs: new(bool)}},
		{"unknown", registry.Result{Reason: "no such host"}, Tag{Error: "no such host"}},
	} {
		e := Of(rev)
		if images := e.PinnedImages(); !slices.Equal(images, []string{image}) {
			t.Errorf("got images %q, want that of the ImagePin", images)
		}
		e.AddTags(map[string]registry.Result{image: tc.result, "docker.io/shop/web:v8": {Digest: digestB}})
		got := e.Containers[0].Tag
		if !reflect.DeepEqual(got, &tc.want) {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
		if other := e.Containers[1].Tag; other != nil {
			t.Errorf("%s: got %+v without an ImagePin", tc.name, other)
		}
	}
}

// TestOptedOut shows the annotation of pods without an ImagePin.
func TestOptedOut(t *testing.T) {
	rev := Revision{Owner: &owner, Template: template("shop/web:v7")}
	none := Of(rev).Containers[0].Reason
	rev.Annotations = map[string]string{consistencyAnnotation: "**/web:*=off", "other": "x"}
	if got, want := Of(rev).Containers[0].Reason, none+`; the pods have the annotation io.imagepin.version-consistency: "**/web:*=off"`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	rev.Annotations[consistencyAnnotation] = "a" + strings.Repeat("é", 64<<10)
	if got := Of(rev).Containers[0].Reason; len(got) > 1<<10 || !utf8.ValidString(got) || !strings.HasSuffix(got, `é…"`) {
		t.Errorf("a long annotation: got %q", got)
	}
	rev.Pins = []v1alpha1.ImagePin{pin(digestA)}
	if got := Of(rev).Containers[0]; got.Reason != "" || got.Pin == nil {
		t.Errorf("with an ImagePin: got %+v", got)
	}
}
