package sim

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	app   = "registry.example/team/app"
	other = "registry.example/team/other"
	// slowHost is a registry that sends layers slowly. slowNames repositories of a tenant are in it.
	slowHost  = "slow.example"
	slowNames = 6
	// privateHost is a registry that asks for a credential. privateNames repositories of a tenant are in it.
	privateHost  = "private.example"
	privateApp   = privateHost + "/team/app"
	privateNames = 4
)

// registry is a registry with the images of a history.
type registry struct {
	w *world

	mu     sync.Mutex
	blobs  map[digest.Digest][]byte
	media  map[digest.Digest]string
	tags   map[string]*build // by reference
	builds []*build
	faults int            // number of next requests that fail
	away   bool           // no host can be reached
	failed []int          // steps of failed requests
	moved  map[string]int // step of the last move of each tag
}

// build is one push: an index with an image for each platform, or one manifest.
type build struct {
	name   string
	root   ocispec.Descriptor
	images map[string]image // by platform
}

type image struct {
	manifest ocispec.Descriptor
	config   ocispec.Descriptor
	layers   []ocispec.Descriptor
	chain    digest.Digest
}

func newRegistry(w *world) *registry {
	r := &registry{w: w, blobs: make(map[digest.Digest][]byte), media: make(map[digest.Digest]string), tags: make(map[string]*build), moved: make(map[string]int)}
	// A and B share a layer. C differs from A only in annotations. D is a manifest without layers.
	a := r.index("A", nil, "base", "a")
	b := r.index("B", nil, "base", "b")
	c := r.index("C", map[string]string{"pushed": "again"}, "base", "a")
	d := &build{name: "D"}
	img := r.image("D", "d", native(), nil)
	d.root, d.images = img.manifest, map[string]image{native(): img}
	e := r.index("E", nil, "base", "e")
	r.builds = []*build{a, b, c, d, e}
	r.tags[app+":1"], r.tags[app+":2"], r.tags[app+":3"] = a, a, b
	r.tags[other+":1"], r.tags[other+":2"] = b, d
	for i := range 3 {
		r.tags[fmt.Sprintf("%s:%d", privateApp, i+1)] = e
	}
	for i := range privateNames {
		r.tags[fmt.Sprintf("%s/tenant/%d:1", privateHost, i)] = e
	}
	for i := range slowNames { // half of them have all layers of another registry's image
		r.tags[slowRef(i)] = []*build{b, e}[i%2]
	}
	for _, build := range r.builds {
		w.setName(build.root.Digest.String(), build.name)
		for platform, img := range build.images {
			arch := strings.TrimPrefix(platform, "linux/")
			w.setName(img.manifest.Digest.String(), build.name+".manifest."+arch)
		}
	}
	for _, build := range []*build{e, d, c, b, a} {
		for platform, img := range build.images {
			arch := strings.TrimPrefix(platform, "linux/")
			if build != d {
				w.setName(img.manifest.Digest.String(), build.name+".manifest."+arch)
			}
			w.setName(img.config.Digest.String(), build.name+".config."+arch)
			for i, l := range img.layers {
				w.setName(l.Digest.String(), fmt.Sprintf("%s.layer%d.%s", build.name, i, arch))
			}
			for i := range img.layers {
				var ids []digest.Digest
				for _, l := range img.layers[:i+1] {
					ids = append(ids, l.Digest)
				}
				if i > 0 {
					w.setName(identity.ChainID(ids).String(), fmt.Sprintf("%s.chain%d.%s", build.name, i, arch))
				}
			}
		}
	}
	return r
}

func (r *registry) add(mediaType string, data []byte) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	r.blobs[d.Digest], r.media[d.Digest] = data, mediaType
	return d
}

func (r *registry) json(mediaType string, v any) ocispec.Descriptor {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return r.add(mediaType, b)
}

// image adds an image of one platform. texts are the content of its layers.
func (r *registry) image(name, author, platform string, annotations map[string]string, texts ...string) image {
	var img image
	config := ocispec.Image{Platform: platforms.MustParse(platform), RootFS: ocispec.RootFS{Type: "layers"}, Author: author}
	for _, text := range texts {
		l := r.add(ocispec.MediaTypeImageLayer, layerOf(text+" "+platform))
		img.layers = append(img.layers, l)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, l.Digest)
	}
	if len(texts) > 0 {
		img.chain = identity.ChainID(append([]digest.Digest(nil), config.RootFS.DiffIDs...))
	}
	img.config = r.json(ocispec.MediaTypeImageConfig, config)
	layers := img.layers
	if layers == nil {
		layers = []ocispec.Descriptor{}
	}
	img.manifest = r.json(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: img.config, Layers: layers, Annotations: annotations,
	})
	return img
}

func (r *registry) index(name string, annotations map[string]string, texts ...string) *build {
	author := texts[len(texts)-1]
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	b := &build{name: name, images: make(map[string]image)}
	for _, platform := range []string{native(), foreign()} {
		img := r.image(name, author, platform, annotations, texts...)
		b.images[platform] = img
		p := platforms.MustParse(platform)
		desc := img.manifest
		desc.Platform = &p
		index.Manifests = append(index.Manifests, desc)
	}
	b.root = r.json(ocispec.MediaTypeImageIndex, index)
	return b
}

func layerOf(text string) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: "text", Mode: 0o644, Size: int64(len(text))}); err != nil {
		panic(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// byRoot returns the build with a root, or nil.
func (r *registry) byRoot(d digest.Digest) *build {
	for _, b := range r.builds {
		if b.root.Digest == d {
			return b
		}
	}
	return nil
}

// named returns the build with a name, or nil.
func (r *registry) named(name string) *build {
	for _, b := range r.builds {
		if b.name == name {
			return b
		}
	}
	return nil
}

// tag returns the current build of a tag.
func (r *registry) tag(ref string) *build {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tags[ref]
}

// move moves a tag to another build.
func (r *registry) move(ref string, to *build) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[ref], r.moved[ref] = to, r.w.steps
}

// fail makes the next requests fail.
func (r *registry) fail(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults += n
}

// setAway makes all hosts unreachable, or reachable again.
func (r *registry) setAway(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
}

// reach fails if the hosts cannot be reached.
func (r *registry) reach() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return nil
}

// failedSince reports whether a request has failed, or could have failed, since a step.
func (r *registry) failedSince(step int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.faults > 0 || len(r.failed) > 0 && r.failed[len(r.failed)-1] >= step
}

// of returns the HTTP transport of a process to the registry.
func (r *registry) of(owner *process) http.RoundTripper { return transport{r, owner} }

type transport struct {
	r     *registry
	owner *process
}

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	if err := t.r.w.step(ctx, t.owner, "registry: %s %s", req.Method, path); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := t.r.reach(); err != nil {
		return nil, err
	}
	resp := t.r.serve(req, path)
	if req.URL.Host == slowHost && strings.HasPrefix(resp.Header.Get("Content-Type"), ocispec.MediaTypeImageLayer) {
		resp.Body = &dripping{resp.Body, t, ctx}
	}
	return resp, nil
}

func slowRef(i int) string { return fmt.Sprintf("%s/tenant/%d:1", slowHost, i) }

// A layer of slowHost takes longer than its callers wait.
const (
	dripEvery = time.Minute
	dripBytes = 100
)

// dripping is a body that comes a few bytes at a time. It never stops coming.
type dripping struct {
	io.ReadCloser
	t   transport
	ctx context.Context
}

func (d *dripping) Read(p []byte) (int, error) {
	timer := time.NewTimer(dripEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.ctx.Done():
		return 0, context.Cause(d.ctx)
	}
	if err := d.t.r.w.step(d.ctx, d.t.owner, "registry: sends a little"); err != nil {
		return 0, err
	}
	return d.ReadCloser.Read(p[:min(len(p), dripBytes)])
}

func (r *registry) serve(req *http.Request, path string) *http.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	respond := func(status int, d digest.Digest) *http.Response {
		data := r.blobs[d]
		resp := &http.Response{
			StatusCode: status, Status: fmt.Sprint(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header), Request: req,
		}
		if status == http.StatusOK {
			resp.Header.Set("Content-Type", r.media[d])
			resp.Header.Set("Docker-Content-Digest", d.String())
			resp.ContentLength = int64(len(data))
			resp.Header.Set("Content-Length", fmt.Sprint(len(data)))
		} else {
			data = nil
		}
		if req.Method == http.MethodHead {
			data = nil
		}
		resp.Body = io.NopCloser(bytes.NewReader(data))
		return resp
	}
	if r.faults > 0 {
		r.faults--
		r.failed = append(r.failed, r.w.steps)
		r.w.write("registry", "  answers 500")
		return respond(http.StatusInternalServerError, "")
	}
	if _, _, known := req.BasicAuth(); !known && req.URL.Host == privateHost {
		resp := respond(http.StatusUnauthorized, "")
		resp.Header.Set("WWW-Authenticate", `Basic realm="private"`)
		return resp
	}
	repo, name, manifest := strings.Cut(path, "/manifests/")
	if !manifest {
		_, name, _ = strings.Cut(path, "/blobs/")
	}
	if d, err := digest.Parse(name); err == nil {
		if _, ok := r.blobs[d]; !ok {
			return respond(http.StatusNotFound, "")
		}
		return respond(http.StatusOK, d)
	}
	b := r.tags[req.URL.Host+"/"+repo+":"+name]
	if b == nil {
		return respond(http.StatusNotFound, "")
	}
	return respond(http.StatusOK, b.root.Digest)
}

func readImage(ctx context.Context, provider content.Provider, desc ocispec.Descriptor) (ocispec.Image, error) {
	var img ocispec.Image
	b, err := content.ReadBlob(ctx, provider, desc)
	if err != nil {
		return img, err
	}
	return img, json.Unmarshal(b, &img)
}
