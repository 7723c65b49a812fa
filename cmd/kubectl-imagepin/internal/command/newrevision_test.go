package command

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/kube"
)

func TestCanResolve(t *testing.T) {
	const flag = "--new-revision=resolve"
	for _, tc := range []struct {
		policy      corev1.PullPolicy
		newRevision string
		words       string // of the error, empty for none
		flag        bool   // the error names the flag
	}{
		{corev1.PullAlways, newRevisionNode, "", false},
		{corev1.PullAlways, newRevisionResolve, "", false},
		{corev1.PullIfNotPresent, newRevisionNode, "web has the pull policy IfNotPresent, with which a new revision can run the old digest again", true},
		{corev1.PullIfNotPresent, newRevisionResolve, "", false},
		{corev1.PullNever, newRevisionNode, "web has the pull policy Never, with which nodes pull nothing", false},
		{corev1.PullNever, newRevisionResolve, "web has the pull policy Never, with which nodes pull nothing", false},
		{"", newRevisionResolve, "", false},
	} {
		container := corev1.Container{Name: "web", Image: "registry.example.com/web:v7", ImagePullPolicy: tc.policy}
		volume := corev1.Volume{Name: "web", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: container.Image, PullPolicy: tc.policy}}}
		for name, spec := range map[string]*corev1.PodSpec{
			"container": {Containers: []corev1.Container{container}}, "init container": {InitContainers: []corev1.Container{container}},
			"image volume": {Volumes: []corev1.Volume{volume}},
			// One that pulls does not make up for one that does not.
			"two": {Containers: []corev1.Container{{Name: "a", Image: container.Image, ImagePullPolicy: corev1.PullAlways}, container}},
		} {
			pinned := &target{revision: &kube.Revision{Template: spec}, pins: make([]v1alpha1.ImagePin, 1)}
			pinned.pins[0].Spec.Image = container.Image
			err := canResolve(pinned, tc.newRevision)
			if tc.words == "" {
				if err != nil {
					t.Errorf("%s, %q with %s: %v", name, tc.policy, tc.newRevision, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.words) || strings.Contains(err.Error(), flag) != tc.flag {
				t.Errorf("%s, %q with %s: got %v, want %q, and the flag: %v", name, tc.policy, tc.newRevision, err, tc.words, tc.flag)
			}
			if name == "two" {
				continue
			}
			if err := canResolve(&target{revision: pinned.revision}, tc.newRevision); err != nil {
				t.Errorf("%s, %q with %s, without an ImagePin: %v", name, tc.policy, tc.newRevision, err)
			}
		}
	}
}

func TestNewRevisionFlag(t *testing.T) {
	for args, want := range map[string]string{
		"deployment/web --restart --new-revision=always":                        `--new-revision must be "node" or "resolve", not "always"`,
		"deployment/web --restart --new-revision=":                              `--new-revision must be "node" or "resolve", not ""`,
		"deployment/web --restart --new-revision=" + strings.Repeat("a", 1<<20): `not "` + strings.Repeat("a", 50) + `"`,
		"deployment/web --new-revision=resolve":                                 "--new-revision needs --restart",
		"--annotated --new-revision=resolve":                                    "--new-revision needs --restart",
		"deployment/web --new-revision=node":                                    "--new-revision needs --restart",
		"--annotated --restart --new-revision=resolve deployment/web":           "--annotated cannot be used with names",
		"--restart --new-revision=resolve":                                      "NAME or KIND/NAME is required",
	} {
		cmd := New(genericiooptions.NewTestIOStreamsDiscard())
		cmd.SetArgs(append([]string{"refresh"}, strings.Fields(args)...))
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 {
			t.Errorf("%.100s: got %.500v, want %s", args, err, want)
		}
	}
}

func TestNewRevisionCompletion(t *testing.T) {
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	cmd := New(streams)
	cmd.SetOut(out)
	cmd.SetArgs([]string{cobra.ShellCompNoDescRequestCmd, "refresh", "--new-revision", ""})
	if err := cmd.ExecuteContext(t.Context()); err != nil || out.String() != "node\nresolve\n:4\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}
