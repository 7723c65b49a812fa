package claims

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/pkg/imagepin"
	client "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
)

const (
	// patience is the timeout of a node's calls while etcd does not run.
	patience = 3 * time.Second
	// serverPatience is less than the API server waits for etcd. It waits 34 seconds for a write.
	serverPatience = 25 * time.Second
	// recovery is how long the API server may need to connect to etcd again.
	recovery = 2 * time.Minute
)

// etcdRig is two nodes that claim for a ReplicaSet. n1 gets digestA from its registry, and n2 gets digestB.
type etcdRig struct {
	*rig
	owner *client.Owner
	nodes []*claimer
}

// claimer is a node with a pod.
type claimer struct {
	*client.Client
	name   string
	pod    client.Pod
	digest digest.Digest
}

// TestEtcd kills etcd before, during and after the request that creates an ImagePin. The claims fail in time. When etcd is
// back, there is one ImagePin for each image, and those that were answered before are the same.
func TestEtcd(t *testing.T) {
	t.Parallel()
	s := startServer(t, cluster.Options{LinkEtcd: true})
	if err := s.install(testkit.Context(t), manifests...); err != nil {
		t.Fatal(err)
	}
	r := &etcdRig{rig: newRig(t, s)}
	r.nodes = []*claimer{{name: n1, digest: digestA}, {name: n2, digest: digestB}}
	for _, n := range r.nodes {
		n.pod = r.webPod(n.name, n.name)
		r.owner = r.ownerOf(n.name, n.pod)
		n.Client = newClient(t, client.Config{Kubeconfig: s.kubeconfig(n.name), Timeout: patience})
	}
	known := r.agreed("known")

	r.kill()
	for _, n := range r.nodes {
		if pin, err := r.clients[n.name].Find(r.ctx, *r.owner, image("known"), true); err != nil || pin == nil || *pin.By != *known.By {
			t.Errorf("%s without etcd: got %+v and %v, want the ImagePin that the API server knows", n.name, pin, err)
		}
	}
	for _, n := range r.nodes {
		began := time.Now()
		_, _, err := r.claimAs(n, "before")
		want(t, err, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, "the API server")
		if took := time.Since(began); took > serverPatience {
			t.Errorf("%s waits %s for the API server, and its timeout is %s", n.name, took, patience)
		}
	}
	r.restart()
	r.agreed("before")

	created := r.killAnswered("after")
	r.restart()
	if pin := r.agreed("after"); pin.UID != created.UID || pin.Digest != digestA || pin.By.Node != n1 {
		t.Errorf("got %+v, want the ImagePin that etcd has created for %s: %s", pin, n1, created.UID)
	}

	answered := r.killDuring(50)
	r.restart()
	answered["known"] = known
	for name, before := range answered {
		if pin := r.agreed(name); pin.UID != before.UID || pin.Digest != before.Digest {
			t.Errorf("%s: got %+v, want %+v, which was answered before etcd was killed", name, pin, before)
		}
	}
}

func image(name string) string { return "registry.example.com/shop/web:" + name }

func (r *etcdRig) claimAs(n *claimer, name string) (client.Pin, bool, error) {
	return n.Claim(r.ctx, *r.owner, n.pod, image(name), n.digest)
}

func (r *etcdRig) kill() {
	r.t.Helper()
	if err := r.KillEtcd(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *etcdRig) restart() {
	r.t.Helper()
	if err := r.StartEtcd(r.ctx); err != nil {
		r.t.Fatal(err)
	}
}

// agreed claims for all nodes, again while the API server is unavailable. It fails the test unless they get one ImagePin,
// with the digest of the node that has created it.
func (r *etcdRig) agreed(name string) client.Pin {
	r.t.Helper()
	var first client.Pin
	for i, n := range r.nodes {
		var pin client.Pin
		testkit.EventuallyIn(r.t, recovery, n.name+" claims "+name, func(context.Context) (bool, error) {
			var err error
			if pin, _, err = r.claimAs(n, name); errdefs.IsUnavailable(err) {
				return false, nil
			}
			return err == nil, err
		})
		if i == 0 {
			first = pin
		}
		if pin.UID != first.UID || pin.Digest != first.Digest {
			r.t.Errorf("%s: %s got %+v, and %s got %+v", name, n.name, pin, r.nodes[0].name, first)
		}
	}
	for _, n := range r.nodes {
		if n.name == first.By.Node && (n.digest != first.Digest || n.pod.UID != first.By.PodUID) {
			r.t.Errorf("%s: got %+v, want the digest of %s", name, first, n.name)
		}
	}
	return first
}

// killAnswered claims as n1, and kills etcd when it has created the ImagePin, before the API server gets its answer. It
// returns the ImagePin.
func (r *etcdRig) killAnswered(name string) client.Pin {
	r.t.Helper()
	// Admission reads the quotas of a namespace from etcd, and remembers them for some time.
	r.agreed("quotas-of-" + name)
	link := r.EtcdLink()
	link.StallAnswers()
	failed := make(chan error, 1)
	go func() {
		_, _, err := r.clients[n1].Claim(r.ctx, *r.owner, r.nodes[0].pod, image(name), r.nodes[0].digest)
		failed <- err
	}()
	var stored v1alpha1.ImagePin
	testkit.EventuallyIn(r.t, time.Minute, "etcd has created the ImagePin", func(ctx context.Context) (bool, error) {
		b, err := r.stored(ctx, fmt.Sprintf("/registry/imagepin.io/imagepins/%s/%s", r.ns, v1alpha1.Name(r.owner.Owner, image(name))))
		if err != nil || b == nil {
			return false, err
		}
		return true, json.Unmarshal(b, &stored)
	})
	r.kill()
	link.Cut()
	want(r.t, <-failed, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, "the API server")
	if err := link.Restore(); err != nil {
		r.t.Fatal(err)
	}
	return client.Pin{UID: stored.UID}
}

// stored returns the value of a key in etcd, or nil if there is none.
func (r *etcdRig) stored(ctx context.Context, key string) ([]byte, error) {
	b, err := json.Marshal(map[string][]byte{"key": []byte(key)})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.EtcdURL()+"/v3/kv/range", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var found struct{ Kvs []struct{ Value []byte } }
	if err := json.NewDecoder(resp.Body).Decode(&found); err != nil || len(found.Kvs) == 0 {
		return nil, err
	}
	return found.Kvs[0].Value, nil
}

// killDuring claims n images with all nodes, and kills etcd after a third of the answers. It returns the ImagePins that were
// answered, by the name of the image.
func (r *etcdRig) killDuring(n int) map[string]client.Pin {
	r.t.Helper()
	var (
		mu       sync.Mutex
		answered = map[string]client.Pin{}
		answers  int
		claims   sync.WaitGroup
	)
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	some, ended := make(chan struct{}), make(chan struct{})
	names := make(chan string, n)
	for i := range n {
		names <- fmt.Sprintf("during-%d", i)
	}
	close(names)
	for range 4 {
		claims.Go(func() {
			for name := range names {
				for _, node := range r.nodes {
					pin, _, err := r.clients[node.name].Claim(ctx, *r.owner, node.pod, image(name), node.digest)
					mu.Lock()
					switch earlier, ok := answered[name]; {
					case err != nil:
						if !errdefs.IsUnavailable(err) && !errors.Is(err, context.Canceled) {
							r.t.Errorf("%s claims %s: %v", node.name, name, err)
						}
					case ok && earlier.UID != pin.UID:
						r.t.Errorf("%s: got %+v and %+v", name, earlier, pin)
					default:
						answered[name] = pin
						if answers++; answers == 2*n/3 {
							close(some)
						}
					}
					mu.Unlock()
				}
			}
		})
	}
	go func() {
		claims.Wait()
		close(ended)
	}()
	select {
	case <-some:
	case <-ended:
		r.t.Fatalf("%d claims were answered before etcd was killed", answers)
	}
	r.kill()
	cancel()
	<-ended
	r.t.Logf("the claims of %d of %d images were answered", len(answered), n)
	return answered
}
