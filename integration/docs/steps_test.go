package docs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/docs/transcript"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// steps are what a document does without showing a command. A step returns its output, which [transcript.Output] shows.
var steps = map[string]func(s *session, args []string) (string, error){
	"push":     (*session).push,
	"delete":   (*session).deleteTag,
	"forget":   (*session).forget,
	"log":      (*session).log,
	"registry": (*session).registry,
	"pod":      (*session).pod,
	"run":      (*session).runPod,
	"remove":   (*session).remove,
	"collect":  (*session).collect,
	"restart":  (*session).restart,
	"die":      (*session).die,
	"boot":     (*session).boot,
	"stop":     (*session).stop,
	"write":    (*session).write,
	"sh":       (*session).sh,
	"metrics":  (*session).metrics,
	"watch":    (*session).watch,
	"event":    (*session).event,
	"inspecti": (*session).inspecti,
}

func (s *session) step(name string, args []string) (string, error) {
	do, ok := steps[name]
	if !ok {
		return "", fmt.Errorf("there is no step %q", name)
	}
	return do(s, args)
}

// push pushes a build of an image for two platforms: push REPOSITORY:TAG BUILD. Images of one build differ only in their
// repository.
func (s *session) push(args []string) (string, error) {
	idx, err := build(args[1])
	if err != nil {
		return "", err
	}
	d, err := s.Reg.Push(args[0], idx)
	return d.String(), err
}

// build returns a build of an image. Its digest is the same in each run, so that documents can show it.
func build(version string) (v1.ImageIndex, error) {
	return images.DataIndex(images.Options{
		Files:  []images.Files{{"/etc/build": []byte("build " + version + "\n")}},
		Random: []images.Random{{Size: 800 << 10, Seed: 1}},
		Env:    []string{"BUILD=" + version},
	}, "linux/amd64", "linux/arm64")
}

// deleteTag deletes a tag or a digest from the registry: delete REPOSITORY:TAG.
func (s *session) deleteTag(args []string) (string, error) { return "", s.Reg.Delete(args[0]) }

// forget deletes a build from the registry, with all of its tags: forget REPOSITORY BUILD.
func (s *session) forget(args []string) (string, error) {
	idx, err := build(args[1])
	if err != nil {
		return "", err
	}
	d, err := idx.Digest()
	if err != nil {
		return "", err
	}
	return "", s.Reg.Delete(args[0] + "@" + d.String())
}

// registry starts or stops the registry: registry up|down.
func (s *session) registry(args []string) (string, error) {
	if args[0] == "up" {
		return "", s.Reg.Up()
	}
	s.Reg.Down()
	return "", nil
}

// pod pulls the image of a new pod as kubelet does: pod REF [handler=HANDLER] [namespace=NAMESPACE] [LABEL=VALUE]... The
// output is the error that kubelet gets.
func (s *session) pod(args []string) (string, error) {
	spec := &cri.ImageSpec{Image: args[0]}
	opts := node.PodOptions{Labels: map[string]string{}}
	for _, a := range args[1:] {
		switch name, value, _ := strings.Cut(a, "="); name {
		case "handler":
			spec.RuntimeHandler = value
		case "namespace":
			opts.Namespace = value
		default:
			opts.Labels[name] = value
		}
	}
	_, err := s.Images().PullImage(s.Ctx, &cri.PullImageRequest{Image: spec, SandboxConfig: s.PodConfig(opts)})
	return status.Convert(err).Message(), nil
}

// runPod runs a pod in the namespace shop, whose container "app" runs until it is stopped: run NAME REF. Images of documents have no
// program, so it is mounted.
func (s *session) runPod(args []string) (string, error) {
	program, err := (&images.Programs{}).App(s.Ctx)
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.Dir, "app")
	if err := os.WriteFile(path, program, 0o755); err != nil && !errors.Is(err, syscall.ETXTBSY) { // a container runs it
		return "", err
	}
	_, err = s.RunAsKubelet(s.Ctx, node.KubeletPod{
		PodOptions: node.PodOptions{Namespace: "shop", Name: args[0]}, Image: args[1], Always: true,
		Container: node.ContainerOptions{Name: "app", Command: []string{"/app"}, Mounts: []*cri.Mount{{HostPath: path, ContainerPath: "/app", Readonly: true}}},
	})
	return "", err
}

// remove removes an image as kubelet does: remove REF.
func (s *session) remove(args []string) (string, error) {
	if err := s.RemoveImage(s.Ctx, args[0], ""); err != nil {
		return "", err
	}
	return "", s.GC(s.Ctx)
}

// collect runs containerd's garbage collection.
func (s *session) collect([]string) (string, error) { return "", s.GC(s.Ctx) }

// restart kills the node's daemons and starts them again, with another default snapshotter if it names one: restart
// [SNAPSHOTTER].
func (s *session) restart(args []string) (string, error) {
	if err := s.Kill9(); err != nil {
		return "", err
	}
	return "", s.Restart(s.Ctx, func(o *node.Options) {
		if len(args) > 0 {
			o.Snapshotter = args[0]
		}
	})
}

// die starts the node's daemons again, so that they die at a failpoint, as in a power loss: die FAILPOINT. [session.boot] starts
// them after that.
func (s *session) die(args []string) (string, error) {
	return "", s.Restart(s.Ctx, func(o *node.Options) {
		o.Binary, o.Env = node.Ours+"-failpoints", []string{"IMAGEPIN_FAILPOINT=" + args[0]}
	})
}

// boot starts the node after a power loss, and waits until it has applied its drop directories: boot LOCK. LOCK is the file
// of the lock that the node has to have then.
func (s *session) boot(args []string) (string, error) {
	if err := s.PowerLoss(); err != nil {
		return "", err
	}
	if err := s.Restart(s.Ctx, func(o *node.Options) { o.Binary, o.Env = node.Ours, nil }); err != nil {
		return "", err
	}
	s.Eventually(args[0]+" is applied", func() bool {
		_, err := s.Must(s.Ctx, "imagepin lock status --expect "+args[0])
		return err == nil
	})
	return "", nil
}

// stop stops the node's daemons.
func (s *session) stop([]string) (string, error) { return "", s.Stop() }

// write writes a file into the directory of the commands: write FILE EXAMPLE.
func (s *session) write(args []string) (string, error) {
	text, ok := files[args[1]]
	if !ok {
		return "", fmt.Errorf("there is no example %q", args[1])
	}
	return "", os.WriteFile(filepath.Join(s.Dir, filepath.Base(args[0])), []byte(text), 0o600)
}

// sh runs a shell command that the document does not show: sh COMMAND...
func (s *session) sh(args []string) (string, error) { return s.command(strings.Join(args, " ")) }

// log returns the last line of the daemon's log with a message, wrapped: log MESSAGE...
func (s *session) log(args []string) (string, error) {
	message := `msg="` + strings.Join(args, " ") + `"`
	lines := slices.Collect(strings.Lines(s.Logs()))
	for _, line := range slices.Backward(lines) {
		if strings.Contains(line, message) {
			return wrap(strings.TrimSpace(line), 116), nil
		}
	}
	return "", fmt.Errorf("the log has no %s", message)
}

// wrap breaks a line at spaces. The lines after the first are indented.
func wrap(line string, width int) string {
	var out strings.Builder
	column := 0
	for i, word := range strings.Fields(line) {
		switch n := len(transcript.Shorten(word)); {
		case i == 0:
			column = n
		case column+1+n > width:
			out.WriteString("\n  ")
			column = 2 + n
		default:
			out.WriteString(" ")
			column += 1 + n
		}
		out.WriteString(word)
	}
	return out.String() + "\n"
}

// files are the files that documents show or describe.
var files = map[string]string{
	"rule-never-matches": `version = 3
[plugins."io.containerd.imagepin.v1.images"]
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["docker.io/library/**"]
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["busybox"]
`,
	"several-errors": `version = 3
[plugins."io.containerd.imagepin.v1.images"]
pull_behaviour = "once"
max_concurrent_unpacks = 0
`,
	"deployment": `apiVersion: apps/v1
kind: Deployment
metadata: {name: cart}
spec:
  selector: {matchLabels: {app: cart}}
  template:
    metadata: {labels: {app: cart}}
    spec:
      initContainers: [{name: setup, image: registry.example.com/shop/setup}]
      containers: [{name: cart, image: "registry.example.com/shop/cart:v7"}]
`,
	"shop":              workload("web") + "---\n" + workload("agent"),
	"serve":             "version = 3\naddress = \"/run/imagepin/imagepin.sock\"\n",
	"serve-unknown-key": "version = 3\n[metric]\naddress = \"127.0.0.1:9099\"\n",
	"valid":             "version = 3\n",
}

// sessions are the nodes of the documents by the name of their session.
var sessions = map[string]node.Options{
	"node consistency":     {Handlers: kata, Extra: consistency("node")},
	"workload consistency": {Handlers: kata, Extra: consistency("workload")},
	"no consistency":       {Handlers: kata},
	"discarded layers":     node.WithEROFS(node.Options{DiscardUnpackedLayers: true}),
	"running pods":         {Handlers: kata, Extra: consistency("node")},
	"serve":                {Mode: node.Serve, Handlers: []node.Handler{{Name: "kata", Platform: "linux/arm64", Snapshotter: "native"}}},
	"retain below keep": {Handlers: kata, Extra: consistency("node") + `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["registry.example.com/keep/**"]
retain = true
`},
	"observability": {
		Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}},
		Extra:    "[plugins.\"io.containerd.server.v1.metrics\"]\naddress = \"" + metricsAddress + "\"\n" + testkit.PinRules,
	},
	"fleet": {SandboxImage: exampleHost + "/pause:3.10", Extra: behavior("shop", "prefer-cached") + "locked = \"strict\"\n"},
	"locks": {Handlers: kata, Extra: `[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["registry.example.com/**"]
locked = "strict"
`},
	"pull behaviors": {Handlers: kata, Extra: behavior("default", "default") + behavior("always", "always") + behavior("once", "once") + behavior("prefer-cached", "prefer-cached")},
}

// kata is a handler with another snapshotter than the default one.
var kata = []node.Handler{{Name: "kata", Snapshotter: "native"}}

// behavior is a rule that sets a pull behavior for the repositories below a path.
func behavior(path, b string) string {
	return "[[plugins.\"io.containerd.imagepin.v1.images\".rules]]\nmatch = [\"registry.example.com/" + path + "/**\"]\npull_behavior = \"" + b + "\"\n"
}

// workload is the manifest of a Deployment.
func workload(name string) string {
	return `apiVersion: apps/v1
kind: Deployment
metadata: {name: ` + name + `}
spec:
  selector: {matchLabels: {app: ` + name + `}}
  template:
    metadata: {labels: {app: ` + name + `}}
    spec:
      containers: [{name: ` + name + `, image: "registry.example.com/shop/` + name + `:stable", imagePullPolicy: Always}]
`
}

func consistency(c string) string {
	return "[plugins.\"io.containerd.imagepin.v1.images\"]\nversion_consistency = \"" + c + "\"\n"
}
