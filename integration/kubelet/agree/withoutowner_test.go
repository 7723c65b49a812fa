package agree

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodsWithoutOwner runs a bare pod and a static pod. They have no ImagePin, and the tag decides what they run.
func TestPodsWithoutOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, three)
	m := three.Members[0]
	first := r.push("1")
	template := r.template("bare")
	bare := &core.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	bare.Name = "bare"
	r.do("POST", r.core("pods"), bare, nil)
	r.wantDigest(r.running("bare", 1, rollout, "1"), first)

	second := r.push("2")
	template = r.template("static")
	static := &core.Pod{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: template.ObjectMeta,
		Spec: core.PodSpec{HostNetwork: true, Containers: template.Spec.Containers, TerminationGracePeriodSeconds: new(int64(1))},
	}
	static.Name, static.Namespace = "static", r.ns
	manifest, err := json.Marshal(static)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.StaticPods(), r.ns+".json")
	hidden := filepath.Join(m.StaticPods(), "."+r.ns) // kubelet ignores it
	if err := os.WriteFile(hidden, manifest, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	})
	r.wantDigest(r.running("static", 1, rollout, "1"), second)
	if pins := r.pins(); len(pins) > 0 {
		t.Errorf("got ImagePins %v, want none", pins)
	}
}
