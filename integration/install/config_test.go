package install

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestDefaultConfigShowsOurSection checks imagepin's section in the output of `containerd config default`.
func TestDefaultConfigShowsOurSection(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(testkit.Context(t), filepath.Join(node.BinDir(), node.Ours), "config", "default").Output()
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Plugins map[string]map[string]any `toml:"plugins"`
	}
	if err := toml.Unmarshal(out, &config); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"manifest_pull_timeout":  "1m0s",
		"max_concurrent_unpacks": int64(4),
		"handlers":               map[string]any{},
	} {
		if got := config.Plugins[testkit.OurSection][key]; !reflect.DeepEqual(got, want) {
			t.Errorf("[plugins.%q] %s: got %#v, want %#v", testkit.OurSection, key, got, want)
		}
	}
}

// TestDefaultConfigLoads checks that imagepin loads with its section as `containerd config default` prints it.
func TestDefaultConfigLoads(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(testkit.Context(t), filepath.Join(node.BinDir(), node.Ours), "config", "default").Output()
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := toml.Unmarshal(out, &config); err != nil {
		t.Fatal(err)
	}
	section, err := toml.Marshal(map[string]any{"plugins": map[string]any{testkit.OurSection: config["plugins"].(map[string]any)[testkit.OurSection]}})
	if err != nil {
		t.Fatal(err)
	}
	n := testkit.Node(t, node.Options{Extra: string(section)})
	if !strings.Contains(n.Logs(), "imagepin is ready") {
		t.Error("imagepin was not loaded")
	}
}

// TestWrongConfig checks that containerd does not serve the CRI if the configuration is invalid: the node must not run
// images that the operator does not want. The log and the imagepin command name the section and the key.
func TestWrongConfig(t *testing.T) {
	t.Parallel()
	ours := func(text string) node.Options {
		return node.Options{Extra: "[plugins.\"" + testkit.OurSection + "\"]\n" + text}
	}
	for name, c := range map[string]struct {
		opts    node.Options
		section string
		key     string // empty if the error names it
		wants   []string
	}{
		"unknown key":              {ours(`manifest_pull_timout = "1m"`), testkit.OurSection, "", []string{`unknown key "manifest_pull_timout" (did you mean "manifest_pull_timeout"?)`}},
		"unknown nested key":       {ours(`handlers.runc.isolated = true`), testkit.OurSection, "", []string{`unknown key "handlers.runc.isolated"`}},
		"invalid duration":         {ours(`manifest_pull_timeout = "soon"`), testkit.OurSection, "manifest_pull_timeout", []string{"soon"}},
		"short timeout":            {ours(`manifest_pull_timeout = "29s"`), testkit.OurSection, "manifest_pull_timeout", []string{"29s", "30s"}},
		"number instead of string": {ours(`manifest_pull_timeout = 60`), testkit.OurSection, "manifest_pull_timeout", nil},
		"zero unpacks":             {ours(`max_concurrent_unpacks = 0`), testkit.OurSection, "max_concurrent_unpacks", []string{"0"}},
		"negative unpacks":         {ours(`max_concurrent_unpacks = -1`), testkit.OurSection, "max_concurrent_unpacks", []string{"-1"}},
		"string instead of number": {ours(`max_concurrent_unpacks = "many"`), testkit.OurSection, "max_concurrent_unpacks", nil},
		"unknown handler":          {ours(`handlers.kata.isolation = "process"`), testkit.OurSection, "handlers.kata", []string{"unknown runtime handler"}},
		"unknown isolation":        {ours(`handlers.runc.isolation = "vm"`), testkit.OurSection, "handlers.runc.isolation", []string{"vm"}},
		"unknown snapshotter of a handler": {
			node.Options{Handlers: []node.Handler{{Name: "kata", Snapshotter: "nydos"}}},
			testkit.RuntimeSection, "containerd.runtimes.kata.snapshotter", []string{"nydos"},
		},
		"unknown default snapshotter": {node.Options{Snapshotter: "overlay"}, testkit.ImagesSection, "snapshotter", []string{"overlay"}},
		"invalid platform": {
			node.Options{Handlers: []node.Handler{{Name: "kata", Platform: "linux/arm64/v8/more"}}},
			testkit.ImagesSection, "runtime_platforms.kata.platform", []string{"linux/arm64/v8/more"},
		},
		"cluster without its part": {
			node.Options{
				DisabledPlugins: []string{"io.containerd.imagepin.part.v1.cluster"}, Extra: "[plugins.\"" + testkit.OurSection + "\".cluster]\nkubeconfig = \"/etc/kubernetes/kubelet.conf\"\n",
			},
			testkit.OurSection, "cluster.kubeconfig", []string{"disabled_plugins"},
		},
		"locks without their part": {
			node.Options{DisabledPlugins: []string{"io.containerd.imagepin.part.v1.fleet"}, Extra: "[plugins.\"" + testkit.OurSection + "\"]\nlocks_directory = \"/srv/locks\"\n"},
			testkit.OurSection, "locks_directory", []string{"disabled_plugins"},
		},
		"platform of an unknown handler": {
			node.Options{Extra: "[plugins.\"" + testkit.ImagesSection + "\".runtime_platforms.kata]\nplatform = \"linux/arm64\"\n"},
			testkit.ImagesSection, "runtime_platforms.kata", []string{"unknown runtime handler"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testkit.Context(t)
			n, err := node.New(c.opts)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			}()
			if err := n.Launch(ctx); err != nil {
				t.Fatal(err)
			}
			where := fmt.Sprintf("[plugins.%q]", c.section)
			if c.key != "" {
				where += " " + c.key
			}
			wantNoCRI(t, n, append([]string{where + ": "}, c.wants...)...)
		})
	}
}

// wantNoCRI checks that a containerd that was launched serves no CRI, and that the log and the imagepin command say why: with a text
// that begins with the first of wants, and has all of them.
func wantNoCRI(t *testing.T, n *node.Node, wants ...string) {
	t.Helper()
	ctx := testkit.Context(t)
	testkit.Eventually(t, "containerd answers", func(ctx context.Context) (bool, error) {
		n.Conn().ResetConnectBackoff()
		_, err := n.Client().Version(ctx)
		return err == nil, nil
	})
	for service, err := range map[string]error{
		"RuntimeService": errOf(n.Runtime().Version(ctx, &cri.VersionRequest{})),
		"ImageService":   errOf(n.Images().ListImages(ctx, &cri.ListImagesRequest{})),
	} {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: got %v, want Unimplemented", service, err)
		}
	}
	var logged string
	for l := range strings.Lines(n.Logs()) {
		l = strings.ReplaceAll(l, "\\", "")
		if strings.Contains(l, "failed to load plugin") && strings.Contains(l, wants[0]) {
			logged += l
		}
	}
	for _, want := range wants {
		if !strings.Contains(logged, want) {
			t.Errorf("the logged error does not contain %q:\n%s", want, logged)
		}
	}
	if !slices.ContainsFunc(strings.Split(n.Logs(), "\n"), func(l string) bool {
		return strings.Contains(l, "level=error") && strings.Contains(l, "not serving the CRI, because imagepin failed to load")
	}) {
		t.Error("the log has no error about the CRI")
	}
	out, err := exec.CommandContext(ctx, filepath.Join(node.BinDir(), "imagepin"), "--address", n.Address(), "images").CombinedOutput()
	for _, want := range append([]string{"imagepin: imagepin failed to load in containerd at " + n.Address() + ": " + wants[0], "imagepin config check"}, wants...) {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("imagepin images: got %v, printed %q, want an error with %q", err, out, want)
		}
	}
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }
