//go:build unix

package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const imagepinEndpoint = "unix:///run/imagepin/imagepin.sock"

// TestKubelet finds the endpoint of kubelets, changes it, and changes it back.
func TestKubelet(t *testing.T) {
	for name, test := range map[string]struct {
		args  string            // DIR is replaced by the directory of the files
		files map[string]string // of the configuration
		unit  map[string]string // of the unit
		in    string            // the file with the endpoint
		was   string
		after string // the file with the endpoint of imagepin
		url   string
	}{
		"configuration": {
			args:  "--config=DIR/config.yaml",
			files: map[string]string{"config.yaml": "kind: KubeletConfiguration\n# containerRuntimeEndpoint: none\ncontainerRuntimeEndpoint: unix:///run/containerd/containerd.sock # mine\nhealthzPort: 1234\n"},
			in:    "config.yaml", was: defaultEndpoint,
			after: "kind: KubeletConfiguration\n# containerRuntimeEndpoint: none\ncontainerRuntimeEndpoint: \"" + imagepinEndpoint + "\" # mine\nhealthzPort: 1234\n",
			url:   "http://127.0.0.1:1234/healthz",
		},
		"without an endpoint": {
			args:  "--config DIR/config.yaml",
			files: map[string]string{"config.yaml": "kind: KubeletConfiguration"},
			in:    "config.yaml", was: defaultEndpoint, after: "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: \"" + imagepinEndpoint + "\"\n",
			url: "http://127.0.0.1:10248/healthz",
		},
		"empty endpoint": {
			args:  "--config=DIR/config.yaml --healthz-bind-address=::",
			files: map[string]string{"config.yaml": "containerRuntimeEndpoint:\ncgroupDriver: systemd\n"},
			in:    "config.yaml", was: defaultEndpoint, after: "containerRuntimeEndpoint: \"" + imagepinEndpoint + "\"\ncgroupDriver: systemd\n",
			url: "http://[::]:10248/healthz",
		},
		"JSON": {
			args:  "--config=DIR/config.json",
			files: map[string]string{"config.json": `{"kind": "KubeletConfiguration", "containerRuntimeEndpoint": "unix:///a.sock", "healthzPort": 0}`},
			in:    "config.json", was: "unix:///a.sock", after: `{"kind": "KubeletConfiguration", "containerRuntimeEndpoint": "` + imagepinEndpoint + `", "healthzPort": 0}`,
		},
		"JSON without an endpoint": {
			args:  "--config=DIR/config.json",
			files: map[string]string{"config.json": `{"healthzBindAddress": "::1"}`},
			in:    "config.json", was: defaultEndpoint, after: `{"containerRuntimeEndpoint": "` + imagepinEndpoint + `", "healthzBindAddress": "::1"}`,
			url: "http://[::1]:10248/healthz",
		},
		"drop-in": {
			args: "--config=DIR/config.yaml --config-dir=DIR/d",
			files: map[string]string{
				"config.yaml": "containerRuntimeEndpoint: unix:///main.sock\n", "d/10-a.conf": "containerRuntimeEndpoint: 'unix:///a.sock'\n",
				"d/20-b.conf": "containerRuntimeEndpoint: unix:///b.sock\n", "d/30-c.conf": "healthzPort: 7\n",
			},
			in: "d/20-b.conf", was: "unix:///b.sock", after: "containerRuntimeEndpoint: \"" + imagepinEndpoint + "\"\n", url: "http://127.0.0.1:7/healthz",
		},
		"flag of kubeadm": {
			args:  "--config=DIR/config.yaml --container-runtime-endpoint=unix:///run/containerd/containerd.sock --healthz-port=9",
			files: map[string]string{"config.yaml": "containerRuntimeEndpoint: unix:///other.sock\n"},
			unit: map[string]string{
				"kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet\n",
				"flags.env":       `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/containerd/containerd.sock --pod-infra=x"` + "\n",
			},
			in: "flags.env", was: defaultEndpoint, after: `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=` + imagepinEndpoint + ` --pod-infra=x"` + "\n",
			url: "http://127.0.0.1:9/healthz",
		},
		"flag in the unit": {
			args: "--container-runtime-endpoint unix:///x.sock",
			unit: map[string]string{"kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint unix:///x.sock\n"},
			in:   "kubelet.service", was: "unix:///x.sock", after: "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint " + imagepinEndpoint + "\n",
			url: "http://127.0.0.1:10248/healthz",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, test.files)
			k, err := kubeletOf(strings.Fields("kubelet "+strings.ReplaceAll(test.args, "DIR", dir)), write(t, dir, test.unit))
			if err != nil {
				t.Fatal(err)
			}
			if k.file != filepath.Join(dir, test.in) || k.endpoint != test.was || k.healthz != test.url {
				t.Errorf("got file %s, endpoint %s, health %q; want %s, %s, %q", k.file, k.endpoint, k.healthz, test.in, test.was, test.url)
			}
			before, err := os.ReadFile(filepath.Join(dir, test.in))
			if err != nil {
				t.Fatal(err)
			}
			after, err := setEndpoint(before, imagepinEndpoint, k.flag)
			if err != nil || string(after) != test.after {
				t.Errorf("got\n%s(%v), want\n%s", after, err, test.after)
			}
		})
	}
}

// write writes files below a directory, and returns their paths.
func write(t *testing.T, dir string, files map[string]string) (paths []string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// TestKubeletThatCannotBeChanged checks the errors for kubelets whose endpoint has no file.
func TestKubeletThatCannotBeChanged(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"broken.yaml": "a: [", "config.yaml": "", "several.yaml": "a: b\n---\ncontainerRuntimeEndpoint: x\n"})
	for args, want := range map[string]string{
		"": "neither --config nor --container-runtime-endpoint",
		"--container-runtime-endpoint=unix:///x.sock":       "no file of kubelet.service has it",
		"--config=" + dir + "/absent.yaml":                  "absent.yaml: no such file",
		"--config=" + dir + "/broken.yaml":                  "broken.yaml: ",
		"--config=" + dir + "/several.yaml":                 "several.yaml: it has several documents",
		"--config=" + dir + "/config.yaml --healthz-port=x": "--healthz-port",
	} {
		if _, err := kubeletOf(strings.Fields("kubelet "+args), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got error %v, want %q", args, err, want)
		}
	}
	for _, content := range []string{"- a\n", "containerRuntimeEndpoint:\n  a: b\n", "containerRuntimeEndpoint:\n  a: {}\n", "a: {b: {containerRuntimeEndpoint: x}}\n"} {
		if after, err := setInConfig([]byte(content), imagepinEndpoint); err == nil {
			t.Errorf("%q: got %q, want an error", content, after)
		}
	}
}

// TestDropInOfContainerd keeps the arguments of the unit.
func TestDropInOfContainerd(t *testing.T) {
	got, err := dropInOfContainerd([]string{"/usr/bin/containerd", "--config", "/etc/my config.toml", "$FLAGS", `a"b\`, "50%", ""}, "/opt/cni tools:/bin")
	want := `Environment="PATH=/opt/imagepin/bin:/opt/cni tools:/bin"` + "\nExecStart=\n" + `ExecStart=/opt/imagepin/bin/containerd --config "/etc/my config.toml" $FLAGS "a\"b\\" 50%% ""` + "\n" +
		"# With SIGTERM, a containerd that is still starting can end its containers.\nTimeoutStartFailureMode=kill\n"
	if err != nil || !strings.HasSuffix(string(got), want) {
		t.Errorf("got\n%s(%v), want at its end\n%s", got, err, want)
	}
	if _, err := dropInOfContainerd(nil, "/bin"); err == nil {
		t.Error("a unit without a command is accepted")
	}
}
