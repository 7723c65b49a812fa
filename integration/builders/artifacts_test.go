package builders

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// artifact is something else than an image, and what happens to it. TestTable compares the artifacts with RELEASES.md.
type artifact struct {
	what    string
	name    string // of its repository
	push    func(w *workshop, f form)
	ggcr    bool // see form
	pull    codes.Code
	refused bool   // by imagepin, but not by stock, which cannot use it
	volume  string // as an image volume: empty, or the end of the error
}

const (
	refused  = codes.FailedPrecondition
	empty    = "empty"
	mismatch = "mismatched image rootfs and manifest layers"
)

var artifacts = []artifact{
	{what: "`oras push` of a file", name: "oras-file", volume: empty, push: func(w *workshop, f form) {
		w.oras("push", "--plain-http", "--artifact-type", "text/plain", w.ref(f), "text.txt:text/plain")
	}},
	{what: "`oras push` of a directory, as a layer", name: "oras-directory", volume: mismatch, push: func(w *workshop, f form) {
		w.oras("push", "--plain-http", w.ref(f), "own:application/vnd.oci.image.layer.v1.tar+gzip")
	}},
	{what: "`oras push` of a Helm chart", name: "oras-chart", volume: empty, push: func(w *workshop, f form) {
		w.write("chart.json", `{"name":"app","version":"1.0.0","apiVersion":"v2"}`)
		w.oras("push", "--plain-http", "--config", "chart.json:application/vnd.cncf.helm.config.v1+json", w.ref(f), "own:application/vnd.cncf.helm.chart.content.v1.tar+gzip")
	}},
	{what: "`oras attach`: the referrer", name: "oras-referrer", volume: empty, push: func(w *workshop, f form) {
		digest := w.attach(f)
		w.oras("tag", "--plain-http", w.host+"/"+f.name+"@"+digest, "v1")
	}},
	{what: "`oras attach`: the tag with the list of referrers", name: "oras-referrers", pull: codes.NotFound, push: func(w *workshop, f form) {
		w.attach(f)
		subject := strings.TrimSpace(w.oras("resolve", "--plain-http", w.host+"/"+f.name+":subject"))
		w.oras("tag", "--plain-http", w.host+"/"+f.name+":"+strings.Replace(subject, ":", "-", 1), "v1")
	}},
	{what: "`buildah manifest add --artifact`, without an image", name: "buildah-only", pull: codes.NotFound, push: func(w *workshop, f form) {
		w.run("buildah", "manifest", "create", "only")
		w.run("buildah", "manifest", "add", "--artifact", "--artifact-type", "text/plain", "only", "/var/shared/text.txt")
		w.run("buildah", "manifest", "push", "--tls-verify=false", "--all", "only", "docker://"+w.ref(f))
	}},
	{what: "`podman artifact push`", name: "podman-artifact", volume: empty, push: func(w *workshop, f form) {
		w.run("podman", "artifact", "add", "--type", "text/plain", w.ref(f), "/var/shared/text.txt")
		w.run("podman", "artifact", "push", "--tls-verify=false", w.ref(f))
	}},
	{what: "an attestation of BuildKit, without its image", name: "attestation", volume: mismatch, refused: true, ggcr: true, push: func(w *workshop, f form) {
		w.pushTo(f, attestation(w, f, testkit.App(w.t, images.Options{})).Image)
	}},
}

// attach attaches a file to another one, with a registry that has no API for referrers.
func (w *workshop) attach(f form) (digest string) {
	w.t.Helper()
	subject := w.host + "/" + f.name + ":subject"
	w.oras("push", "--plain-http", subject, "text.txt:text/plain")
	return w.orasDigest("attach", "--plain-http", "--artifact-type", "text/plain", subject, "text.txt:text/plain")
}

// outcome is what happens to an artifact on a node.
type outcome struct {
	pull        codes.Code
	id          string
	run, volume string
}

// testArtifact pulls an artifact, creates a container of it, and mounts it as an image volume, as kubelet does. The outcome is that
// of stock.
func testArtifact(t *testing.T, w *workshop, both []*side, app string, a artifact) {
	f := form{name: a.name, ggcr: a.ggcr}
	a.push(w, f)
	outcomes := make([]outcome, len(both))
	for i, s := range both {
		outcomes[i] = s.artifact(t, w.ref(f), app)
	}
	ours, stock := outcomes[0], outcomes[1]
	if a.refused {
		if ours != (outcome{pull: refused}) {
			t.Errorf("imagepin: %+v", ours)
		}
	} else if ours != stock {
		t.Errorf("imagepin: %+v, stock: %+v", ours, stock)
	}
	if stock.pull != a.pull || stock.volume != a.volume || (stock.run == "") != (a.pull != codes.OK) {
		t.Errorf("stock: %+v, want %s and %q", stock, a.pull, a.volume)
	}
}

func (s *side) artifact(t *testing.T, ref, app string) (o outcome) {
	r := s.In(t)
	id, err := r.Pull(r.Ctx, ref, "")
	if o.pull = status.Code(err); err != nil {
		return o
	}
	o.id = id
	_, err = r.CreateContainer(r.Ctx, s.pod, node.ContainerOptions{Image: id, UserImage: ref})
	o.run = lastClause(err)
	c, line, err := r.RunContainer(r.Ctx, s.pod, node.ContainerOptions{
		Image: app, Args: []string{"ls", "/0", "/"}, // prints 0 if the volume is empty
		Mounts: []*cri.Mount{{ContainerPath: "/0", Readonly: true, Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: ref}}},
	})
	switch {
	case err != nil:
		o.volume = lastClause(err)
	case line == "0":
		o.volume = empty
	default:
		o.volume = "it has " + line
	}
	if c != nil {
		if err := c.Remove(r.Ctx); err != nil {
			t.Error(err)
		}
	}
	r.MustRemove(ref, "")
	return o
}

// lastClause returns the end of an error, which does not have the ID of a container.
func lastClause(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	return text[strings.LastIndex(text, ": ")+2:]
}
