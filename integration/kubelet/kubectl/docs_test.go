package kubectl

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/random"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/docs/transcript"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestDocs runs the commands of docs/kubectl.md and compares their output.
func TestDocs(t *testing.T) {
	t.Parallel()
	page, err := transcript.Read("../../../docs/kubectl.md")
	if err != nil {
		t.Fatal(err)
	}
	sessions := page.Sessions()
	if len(sessions) != 1 || sessions[0][0].Text != shopNamespace {
		t.Fatalf("%s: got %d sessions, want one with the namespace %s", page.Path, len(sessions), shopNamespace)
	}
	text, err := os.ReadFile(page.Path)
	if err != nil {
		t.Fatal(err)
	}
	var server version.Info
	api.must(t, "GET", "/version", nil, &server)
	if want := "API server " + strings.TrimPrefix(server.GitVersion, "v"); !strings.Contains(string(text), want) {
		t.Errorf("%s does not have the version %q", page.Path, want)
	}
	s := newShop(t)
	check := page.Check()
	command := func(text string) (string, error) { return s.Run(s.ctx, text) }
	if err := s.Play(sessions[0], command, s.step, check.Output); err != nil {
		t.Fatal(err)
	}
	if err := check.Save(); err != nil {
		t.Fatal(err)
	}
}

const (
	shopNamespace = "shop"
	postgres      = "docker.io/library/postgres:18"
)

// shop is the namespace of docs/kubectl.md: a Deployment whose tag has moved while its pods started, and a StatefulSet.
type shop struct {
	t   *testing.T
	ctx context.Context
	transcript.Shell
	images  *tlsRegistry
	before  string // the first digest of the Deployment's tag
	current string // the digest of the Deployment's tag
	rs      string // the first ReplicaSet of the Deployment
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{t: t, ctx: testkit.Context(t), images: startTLSRegistry(t)}
	s.connect()
	api.must(t, "POST", "/api/v1/namespaces", &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shopNamespace}}, nil)
	api.must(t, "POST", appsPath(shopNamespace, "deployments", ""), &apps.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       apps.DeploymentSpec{Replicas: new(int32(3)), Selector: labeled("web"), Template: shopTemplate("web", image)},
	}, nil)
	api.must(t, "POST", appsPath(shopNamespace, "statefulsets", ""), &apps.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec:       apps.StatefulSetSpec{Replicas: new(int32(1)), Selector: labeled("db"), Template: shopTemplate("db", postgres)},
	}, nil)
	awaitRevision(t, shopNamespace, "db")
	s.before = s.push(1)
	s.current = s.push(2)
	pods := await(t, shopNamespace, 4)
	web := slices.DeleteFunc(slices.Clone(pods), func(p *core.Pod) bool { return p.Labels["app"] != "web" })
	db := slices.DeleteFunc(pods, func(p *core.Pod) bool { return p.Labels["app"] != "db" })
	for i, p := range web {
		// The names that the page shows.
		s.Replace(ownerOf(p).Name+"-"+[]string{"9g4l6", "k2xwq", "tz7bn"}[i], p.Name)
		bind(t, p, "n"+strconv.Itoa(i+1))
		report(t, p, []string{s.before, s.before, s.current}[i])
	}
	bind(t, db[0], "n1")
	report(t, db[0], digestA)
	s.rs = ownerOf(web[0]).Name
	s.claim(web[0], image, s.before)
	s.claim(db[0], postgres, digestA)
	s.See(digestA + " " + digestB)
	return s
}

func labeled(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func shopTemplate(app, image string) core.PodTemplateSpec {
	pods := template(image)
	pods.Labels, pods.Spec.Containers[0].Name = labeled(app).MatchLabels, app
	return pods
}

// connect sets the environment of the commands: kubectl with the plugin, and the registry behind a proxy.
func (s *shop) connect() {
	s.t.Helper()
	s.Dir = s.t.TempDir()
	kubeconfig := filepath.Join(s.Dir, "kubeconfig")
	if err := api.WriteKubeconfig(kubeconfig, shopNamespace); err != nil {
		s.t.Fatal(err)
	}
	authority := filepath.Join(s.Dir, "registry.pem")
	if err := os.WriteFile(authority, s.images.certificate(), 0o600); err != nil {
		s.t.Fatal(err)
	}
	bin, err := filepath.Abs(node.BinDir())
	if err != nil {
		s.t.Fatal(err)
	}
	s.Env = []string{
		"PATH=" + filepath.Dir(cluster.Bin("kubectl")) + ":" + bin + ":/usr/bin:/bin", "HOME=" + s.Dir, "KUBECONFIG=" + kubeconfig,
		"HTTPS_PROXY=" + s.images.proxy.URL, "SSL_CERT_FILE=" + authority,
	}
}

// claim creates the ImagePin of a pod's image. The page shows the name that it would have with another UID.
func (s *shop) claim(p *core.Pod, image, digest string) {
	s.t.Helper()
	shown := ownerOf(p)
	shown.UID = "00000000-0000-4000-8000-000000000000"
	s.Replace(v1alpha1.Name(shown, image), api.claim(s.t, p, image, digest).Name)
}

// push moves the tag of the Deployment to a build, which has the same digest in each run.
func (s *shop) push(build int64) string {
	s.t.Helper()
	return s.images.push(s.t, "shop/web:v7", random.WithSource(rand.NewSource(build)))
}

// step does what the page does not show as a command:
//
//	push BUILD                the Deployment's tag moves to a build
//	registry serves|denies    the registry does not require, or requires, a credential
//	lock                      there is a lock with the first digests, and the manifest of a Deployment without pods
//	next                      the first pod of the Deployment's next revision starts, and its node creates the ImagePin
//	store                     the pod api runs a digest, and its tag is overwritten
//	sh COMMAND...             a shell command
func (s *shop) step(name string, args []string) (string, error) {
	switch name {
	case "push":
		build, err := strconv.ParseInt(args[0], 10, 64)
		if err != nil {
			return "", err
		}
		s.current = s.push(build)
		return s.current, nil
	case "registry":
		s.images.denies.Store(args[0] == "denies")
		return "", nil
	case "lock":
		return "", s.lock()
	case "next":
		s.next()
		return "", nil
	case "store":
		s.store()
		return "", nil
	case "sh":
		return s.Must(s.ctx, strings.Join(args, " "))
	}
	return "", fmt.Errorf("there is no step %q", name)
}

// lock writes the files images.lock and worker.yaml.
func (s *shop) lock() error {
	manifest, err := yaml.Marshal(&apps.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: "worker"},
		Spec:       apps.DeploymentSpec{Replicas: new(int32), Selector: labeled("worker"), Template: shopTemplate("worker", image)},
	})
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(s.Dir, "images.lock"), []byte(lockOf(image, s.before, postgres, digestA)), 0o600),
		os.WriteFile(filepath.Join(s.Dir, "worker.yaml"), manifest, 0o600))
}

func (s *shop) next() {
	s.t.Helper()
	var pod *core.Pod
	testkit.EventuallyIn(s.t, timeout, "the next revision has a pod", func(ctx context.Context) (bool, error) {
		var list struct{ Items []*core.Pod }
		err := api.Do(ctx, "GET", podPath(shopNamespace, "")+"?labelSelector=app=web", nil, &list)
		slices.SortFunc(list.Items, func(a, b *core.Pod) int { return cmp.Compare(a.Name, b.Name) })
		for _, p := range list.Items {
			if ownerOf(p).Name != s.rs {
				pod = p
			}
		}
		return pod != nil, err
	})
	bind(s.t, pod, "n1")
	report(s.t, pod, s.current)
	s.claim(pod, image, s.current)
}

// store creates a pod whose tag is overwritten. The page shows another cluster's tags.
func (s *shop) store() {
	s.t.Helper()
	var system core.Namespace
	api.must(s.t, "GET", "/api/v1/namespaces/kube-system", nil, &system)
	cluster := sha256.Sum256([]byte(system.UID))
	s.Replace("imagepin-3f9c2a1e-", "imagepin-"+hex.EncodeToString(cluster[:4])+"-")
	const store = "store/api:v7"
	p := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: "api"}, Spec: core.PodSpec{Containers: []core.Container{{Name: "api", Image: "registry.example.com/" + store}}}}
	api.must(s.t, "POST", podPath(shopNamespace, ""), p, p)
	digest := s.images.push(s.t, store, random.WithSource(rand.NewSource(11)))
	s.images.push(s.t, store, random.WithSource(rand.NewSource(12)))
	s.See(digest)
	runs(s.t, p, digest)
}
