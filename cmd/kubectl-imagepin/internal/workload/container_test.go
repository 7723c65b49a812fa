package workload

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// podWithEverything has a container of each type. Its status lists containers in another order than its spec.
func podWithEverything() *corev1.Pod {
	id := func(repository string) string { return repository + "@sha256:" + hex }
	return &corev1.Pod{
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "model", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "model:v1"}}},
			},
			InitContainers:      []corev1.Container{{Name: "init", Image: "init:v1"}},
			Containers:          []corev1.Container{{Name: "web", Image: "web:v1", ImagePullPolicy: corev1.PullAlways}, {Name: "log", Image: "log:v1"}, {Name: "new", Image: "new:v1"}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "debug:v1"}}},
		},
		Status: corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", ImageID: id("init")}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "new", Image: "new:v1"},
				{Name: "log", ImageID: "sha256:" + hex},
				{Name: "web", ImageID: id("web"), VolumeMounts: []corev1.VolumeMountStatus{
					{Name: "data"},
					{Name: "model", VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: id("model")}}},
				}},
			},
			EphemeralContainerStatuses: []corev1.ContainerStatus{{Name: "debug", ImageID: id("debug")}},
		},
	}
}

func TestContainers(t *testing.T) {
	want := []Container{
		{Name: "model", Type: ImageVolume, Image: "model:v1"}, {Name: "init", Type: InitContainer, Image: "init:v1"},
		{Name: "web", Type: RegularContainer, Image: "web:v1", PullPolicy: corev1.PullAlways}, {Name: "log", Type: RegularContainer, Image: "log:v1"},
		{Name: "new", Type: RegularContainer, Image: "new:v1"}, {Name: "debug", Type: EphemeralContainer, Image: "debug:v1"},
	}
	if got := Containers(&podWithEverything().Spec); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestRunningIn(t *testing.T) {
	pod := podWithEverything()
	manifest, config := ImageID{"sha256:" + hex, OfManifest}, ImageID{"sha256:" + hex, OfConfig}
	id := func(name string) string { return name }
	want := []Running{
		{Container{"model", ImageVolume, "model:v1", ""}, manifest, id("model")}, {Container{"init", InitContainer, "init:v1", ""}, manifest, id("init")},
		{Container{"web", RegularContainer, "web:v1", corev1.PullAlways}, manifest, id("web")}, {Container{"log", RegularContainer, "log:v1", ""}, config, ""},
		{Container{"debug", EphemeralContainer, "debug:v1", ""}, manifest, id("debug")},
	}
	if got := RunningIn(pod); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v: all but the container without an imageID", got, want)
	}
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		if pod.Status.Phase = phase; len(RunningIn(pod)) != 0 {
			t.Errorf("a pod that is %s runs something", phase)
		}
	}
}

func TestBuilds(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "on-" + name}}
		p.Name = name
		return p
	}
	a, b, config := ImageID{"sha256:a", OfManifest}, ImageID{"sha256:b", OfManifest}, ImageID{"sha256:c", OfConfig}
	for _, tc := range []struct {
		name              string
		ids               []ImageID
		drift, comparable bool
	}{
		{"nothing", nil, false, true},
		{"one digest", []ImageID{a, a}, false, true},
		{"two digests", []ImageID{a, b}, true, true},
		{"a manifest and a configuration", []ImageID{a, config}, false, false},
		{"two manifests and a configuration", []ImageID{a, b, config}, true, false},
	} {
		var builds Builds
		for _, id := range tc.ids {
			builds.Add(id, pod("p"))
		}
		if builds.Drift() != tc.drift || builds.Comparable() != tc.comparable {
			t.Errorf("%s: drift %v, comparable %v", tc.name, builds.Drift(), builds.Comparable())
		}
	}
	var builds Builds
	builds.Add(a, pod("z"))
	builds.Add(b, pod("y"))
	builds.Add(b, pod("x"))
	want := []Build{{"sha256:b", OfManifest, []Pod{{"x", "on-x"}, {"y", "on-y"}}}, {"sha256:a", OfManifest, []Pod{{"z", "on-z"}}}}
	if got := builds.List(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
