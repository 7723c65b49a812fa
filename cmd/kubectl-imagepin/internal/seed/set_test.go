package seed

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// parse returns a lock of references, each with its text in a manifest.
func parse(t *testing.T, pairs ...string) *lock.Lock {
	t.Helper()
	text := "apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages:\n"
	for i := 0; i < len(pairs); i += 2 {
		text += "- image: " + pairs[i] + "\n"
		if pairs[i+1] != "" {
			text += "  annotations: {kbld.carvel.dev/id: '" + pairs[i+1] + "'}\n"
		}
	}
	l, err := lock.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestSetOf(t *testing.T) {
	got, err := SetOf(parse(t,
		"nginx@"+digestA, "nginx", "index.docker.io/library/nginx@"+digestB, "nginx:1.29", "localhost:5000/web@"+digestC, "localhost:5000/web:v7",
		"shop/by-digest@"+digestA, "shop/by-digest@"+digestA, "shop/fixed@"+digestA, "shop/fixed:v1@"+digestA, "shop/none@"+digestA, ""))
	want := Set{"docker.io/library/nginx:latest": digestA, "docker.io/library/nginx:1.29": digestB, "localhost:5000/web:v7": digestC}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if _, err := SetOf(parse(t, "shop/none@"+digestA, "")); err == nil || !strings.Contains(err.Error(), lock.IDAnnotation) {
		t.Errorf("got %v, want an error for a lock without tags", err)
	}
}

func TestImages(t *testing.T) {
	spec := &corev1.PodSpec{
		Volumes:        []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "shop/data:v1"}}}},
		InitContainers: []corev1.Container{{Name: "init", Image: "busybox"}},
		Containers:     []corev1.Container{{Name: "a", Image: "docker.io/library/busybox:latest"}, {Name: "b", Image: "shop/b:v1@" + digestA}, {Name: "c", Image: image}},
	}
	got, err := Images(spec)
	if want := []string{"docker.io/shop/data:v1", "docker.io/library/busybox:latest", image}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	spec.Containers[0].Image = "Busybox"
	if _, err := Images(spec); err == nil || !strings.Contains(err.Error(), `"Busybox"`) {
		t.Errorf("got %v, want an error that names the image", err)
	}
}
