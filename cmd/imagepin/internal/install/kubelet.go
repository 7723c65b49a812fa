//go:build unix

package install

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/imagepin/imagepin/internal/yamldoc"
)

// defaultEndpoint is kubelet's default, see pkg/kubelet/apis/config/v1beta1/defaults.go of Kubernetes.
const defaultEndpoint = "unix:///run/containerd/containerd.sock"

// endpointFlag is deprecated in favor of containerRuntimeEndpoint, and takes precedence over it.
const endpointFlag = "--container-runtime-endpoint"

// kubelet is the kubelet of the node.
type kubelet struct {
	// file has the endpoint, as a flag or in a configuration.
	file     string
	flag     bool
	endpoint string
	healthz  string // the URL; empty if it is off
}

// findKubelet returns the running kubelet; nil if the node has no unit of that name.
func findKubelet(ctx context.Context, s *systemd) (*kubelet, error) {
	u, err := s.unit(ctx, kubeletUnit)
	if err != nil {
		return nil, err
	}
	if !u.loaded {
		return nil, nil
	}
	if u.pid == 0 {
		return nil, fmt.Errorf("%s does not run: start it, or add --no-kubelet", kubeletUnit)
	}
	args, err := commandLine(u.pid)
	if err != nil {
		return nil, fmt.Errorf("arguments of kubelet: %w", err)
	}
	k, err := kubeletOf(args, u.files)
	if err != nil {
		return nil, err
	}
	k.file, err = filepath.EvalSymlinks(k.file)
	return k, err
}

// uses reports whether kubelet's endpoint is a socket.
func (k *kubelet) uses(socket string) bool {
	return strings.TrimPrefix(k.endpoint, "unix://") == socket
}

// with returns the content of kubelet's file, and that with another endpoint.
func (k *kubelet) with(endpoint string) (before, after []byte, err error) {
	if before, err = os.ReadFile(k.file); err != nil {
		return nil, nil, err
	}
	if after, err = setEndpoint(before, endpoint, k.flag); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", k.file, err)
	}
	return before, after, nil
}

// kubeletOf returns the kubelet with a command line. files are those of its unit.
func kubeletOf(args, files []string) (*kubelet, error) {
	flag := func(name string) string {
		value := ""
		for i, a := range args {
			if v, ok := strings.CutPrefix(a, name+"="); ok {
				value = v
			} else if a == name && i+1 < len(args) {
				value = args[i+1]
			}
		}
		return value
	}
	k := &kubelet{file: flag("--config")}
	candidates, err := dropIns(flag("--config-dir"))
	if err != nil {
		return nil, err
	}
	if k.file != "" {
		candidates = append(candidates, k.file)
	}
	address, port := "127.0.0.1", 10248
	for i, path := range slices.Backward(candidates) { // from the main file to what takes precedence
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		c, err := parseKubeletConfig(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if c.Endpoint != "" {
			k.file, k.endpoint = candidates[i], c.Endpoint
		}
		address = cmp.Or(c.HealthzAddress, address)
		if c.HealthzPort != nil {
			port = *c.HealthzPort
		}
	}
	address = cmp.Or(flag("--healthz-bind-address"), address)
	if v := flag("--healthz-port"); v != "" {
		if port, err = strconv.Atoi(v); err != nil {
			return nil, fmt.Errorf("kubelet's --healthz-port: %w", err)
		}
	}
	if port != 0 {
		k.healthz = fmt.Sprintf("http://%s/healthz", netAddress(address, port))
	}
	if v := flag(endpointFlag); v != "" {
		k.endpoint, k.flag = v, true
		if k.file, err = fileWithFlag(files, v); err != nil {
			return nil, err
		}
	}
	k.endpoint = cmp.Or(k.endpoint, defaultEndpoint)
	if k.file == "" {
		return nil, fmt.Errorf("kubelet has neither --config nor %s: add one, or add --no-kubelet", endpointFlag)
	}
	return k, nil
}

func netAddress(address string, port int) string {
	if address == "0.0.0.0" {
		address = "127.0.0.1"
	}
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return address + ":" + strconv.Itoa(port)
}

// dropIns returns the files of kubelet's --config-dir, the one that takes precedence first.
func dropIns(dir string) ([]string, error) {
	if dir == "" {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.conf"))
	slices.SortFunc(files, func(a, b string) int { return strings.Compare(b, a) })
	return files, err
}

// fileWithFlag returns the file of kubelet's unit that has the endpoint as a flag.
func fileWithFlag(files []string, endpoint string) (string, error) {
	for _, path := range slices.Backward(files) {
		content, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // an environment file may be missing
		}
		if err != nil {
			return "", err
		}
		for _, m := range flagPattern.FindAllSubmatch(content, -1) {
			if string(m[2]) == endpoint {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("kubelet has the flag %s=%s, but no file of %s has it: set it there, or add --no-kubelet", endpointFlag, endpoint, kubeletUnit)
}

// kubeletConfig is the part of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) that an installation needs.
type kubeletConfig struct {
	Endpoint       string `json:"containerRuntimeEndpoint"`
	HealthzAddress string `json:"healthzBindAddress"`
	HealthzPort    *int   `json:"healthzPort"`
}

func parseKubeletConfig(content []byte) (c kubeletConfig, _ error) {
	if err := yamldoc.Single(content); err != nil {
		return c, err // kubelet reads only the first document, which can be another one than the operator expects
	}
	return c, yaml.Unmarshal(content, &c)
}

var (
	flagPattern   = regexp.MustCompile(`(` + endpointFlag + `[= ]["']?)([^\s"'\\]+)`)
	configPattern = regexp.MustCompile(`(?m)(^|[{,]\s*)(\s*"?containerRuntimeEndpoint"?[ \t]*:)[ \t]*("[^"\n]*"|'[^'\n]*'|[^\s"'#,}]*)`)
)

// setEndpoint returns the content of a file of kubelet with another endpoint.
func setEndpoint(content []byte, endpoint string, flag bool) ([]byte, error) {
	if !flag {
		return setInConfig(content, endpoint)
	}
	if !flagPattern.Match(content) {
		return nil, fmt.Errorf("it does not have the flag %s", endpointFlag)
	}
	return flagPattern.ReplaceAll(content, []byte("${1}"+endpoint)), nil
}

// setInConfig sets the endpoint in a KubeletConfiguration in YAML or JSON, and keeps the rest, also comments.
func setInConfig(content []byte, endpoint string) ([]byte, error) {
	var after []byte
	switch text := bytes.TrimSpace(content); {
	case configPattern.Match(content):
		after = configPattern.ReplaceAll(content, []byte(`${1}${2} "`+endpoint+`"`))
	case bytes.HasPrefix(text, []byte("{")):
		after = bytes.Replace(content, []byte("{"), []byte(`{"containerRuntimeEndpoint": "`+endpoint+`", `), 1)
	default:
		after = slices.Concat(bytes.TrimRight(content, "\n"), []byte("\ncontainerRuntimeEndpoint: \""+endpoint+"\"\n"))
	}
	if c, err := parseKubeletConfig(after); err != nil || c.Endpoint != endpoint {
		return nil, fmt.Errorf("cannot set containerRuntimeEndpoint: set it to %s yourself, and add --no-kubelet", endpoint)
	}
	return after, nil
}
